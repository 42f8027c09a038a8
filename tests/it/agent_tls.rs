//! Agents over TLS: a client certificate, its renewal, and an authority that is not trusted.

use std::fs;
use std::path::PathBuf;

use kubesvc_core::{KubesvcAgent, State};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use serde_json::json;

use crate::world::{Agent, AgentBuilder, MAX_WAIT, Prepare, World};
use kubesvc_testkit::folder::Folder;
use kubesvc_testkit::must;
use kubesvc_testkit::wait::eventually;

/// An authority, and a folder with certificates of the hub and of an agent. The agent's are behind links, as in a mounted
/// Secret.
pub(crate) struct Certificates {
    folder: Folder,
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl Certificates {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().expect("a key");
        let authority = CertifiedIssuer::self_signed(params, key).expect("an authority");
        let certificates = Self { folder: must(Folder::new("tls")), authority };
        certificates.write("ca.pem", &certificates.authority.pem());
        let (certificate, key) = certificates.leaf("127.0.0.1", ExtendedKeyUsagePurpose::ServerAuth);
        certificates.write("hub.pem", &certificate);
        certificates.write("hub.key", &key);
        for (path, target) in [("tls.crt", "..data/tls.crt"), ("tls.key", "..data/tls.key")] {
            std::os::unix::fs::symlink(target, certificates.folder.file(path)).expect("a link");
        }
        certificates.issue("first");
        certificates
    }

    pub(crate) fn leaf(&self, name: &str, usage: ExtendedKeyUsagePurpose) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![usage];
        let certificate = params.signed_by(&key, &self.authority).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.folder.file(name), text).expect("written");
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.file(name).display().to_string()
    }

    /// Issues a certificate for the agent, and swaps the link to the folder that has it.
    fn issue(&self, version: &str) {
        let (certificate, key) = self.leaf("agent-1", ExtendedKeyUsagePurpose::ClientAuth);
        let folder = self.folder.file(version);
        fs::create_dir(&folder).expect("a folder");
        fs::write(folder.join("tls.crt"), certificate).expect("written");
        fs::write(folder.join("tls.key"), key).expect("written");
        let (new, data): (PathBuf, PathBuf) = (self.folder.file("..new"), self.folder.file("..data"));
        std::os::unix::fs::symlink(version, &new).expect("a link");
        fs::rename(new, data).expect("renamed");
    }

    /// A world whose hub requires certificates of the authority.
    pub(crate) fn prepare(&self) -> Prepare {
        let security = |key: &str| format!("kubesvc.grpc.server.security.{key}");
        World::prepare()
            .with_long_timeouts()
            .setting(&security("enabled"), true)
            .setting(&security("certificateChain"), format!("file:{}", self.path("hub.pem")))
            .setting(&security("privateKey"), format!("file:{}", self.path("hub.key")))
            .setting(&security("clientAuth"), "REQUIRE")
            .setting(&security("trustCertCollection"), format!("file:{}", self.path("ca.pem")))
    }

    /// An agent that shows its certificate, and trusts the hub by this file.
    fn agent<'w>(&self, world: &'w World, authority: &str) -> AgentBuilder<'w> {
        world
            .agent("agent-1")
            .setting("clouddriver.insecure", json!(false))
            .setting("clouddriver.tls.clientCertFile", json!(self.path("tls.crt")))
            .setting("clouddriver.tls.clientKeyFile", json!(self.path("tls.key")))
            .setting("clouddriver.tls.cacertFile", json!(authority))
    }
}

async fn session(world: &World, agent: &Agent) -> (String, i64) {
    let object: KubesvcAgent = world.agent_object(agent).await.expect("the agent's object");
    let session = object.status.and_then(|status| status.session).expect("a session");
    (session.boot_id.to_string(), session.connect_seq)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_client_certificate_takes_over_the_session_without_a_write_to_its_account() {
    let certificates = Certificates::new();
    let world = certificates.prepare().start().await;
    let agent = certificates.agent(&world, &certificates.path("ca.pem")).start().await;
    let cluster = world.cluster("prod").await;
    world.account("prod").zone(agent.zone()).kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("prod", State::Active).await;
    let (boot, first) = session(&world, &agent).await;
    let writes = world.writes_to("prod").len();
    certificates.issue("second");
    eventually("the second connection has taken over", MAX_WAIT, async || {
        let (same, seq) = session(&world, &agent).await;
        if same == boot && seq > first { Ok(()) } else { Err(format!("connection {seq} of {same}")) }
    })
    .await;
    world.until_connected(&agent, true).await;
    assert_eq!(world.state("prod").await, Some(State::Active));
    assert_eq!(world.writes_to("prod").len(), writes, "{:#?}", world.writes_to("prod"));
    let log = agent.log_text();
    assert!(!log.contains("retrying in"), "the session was never away: {log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_does_not_trust_the_hub_names_the_setting() {
    let certificates = Certificates::new();
    let world = certificates.prepare().start().await;
    let other = Certificates::new();
    let agent = certificates.agent(&world, &other.path("ca.pem")).launch();
    eventually("the agent names cacertFile", MAX_WAIT, async || {
        let log = agent.log_text();
        if log.contains("no authority in clouddriver.tls.cacertFile has signed") { Ok(()) } else { Err(log) }
    })
    .await;
}
