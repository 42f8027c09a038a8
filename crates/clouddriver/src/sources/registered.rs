//! Accounts that kubesvc itself registered in Clouddriver, of this or another installation.

use kubesvc_core::kubeconfig::DocumentNode;
use serde_json::{Map, Value};

/// How the context of such an account's kubeconfig begins: `kubesvc/<namespace uid>/<account uid>`.
const CONTEXT_PREFIX: &str = "kubesvc/";

/// Whether kubesvc registered this account in Clouddriver, so that it is not an account of a source: its kubeconfig's
/// context is the mark of an installation. That says who owns the row, whatever other fields were changed.
pub fn is_registered(definition: &Map<String, Value>) -> bool {
    let Some(contents) = definition.get("kubeconfigContents").and_then(Value::as_str) else { return false };
    if !contents.contains(CONTEXT_PREFIX) {
        return false;
    }
    let Some(kubeconfig) = DocumentNode::read(contents.as_bytes()) else { return false };
    let chosen = definition.get("context").and_then(Value::as_str).filter(|context| !context.is_empty());
    chosen.or_else(|| kubeconfig.text("current-context")).is_some_and(is_mark)
}

fn is_mark(context: &str) -> bool {
    let uids = context.strip_prefix(CONTEXT_PREFIX).and_then(|uids| uids.split_once('/'));
    uids.is_some_and(|(namespace, account)| is_uid(namespace) && is_uid(account))
}

fn is_uid(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 64
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}
