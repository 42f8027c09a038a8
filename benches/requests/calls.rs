//! Calls: one GET and one scale, through the API of accounts and through REST's operations, at the replica that has the
//! agent and at another one; the API of accounts also behind the operator's API server.

use serde_json::{Value, json};

use crate::{
    callers::Call,
    echo::Echo,
    latency::{Kind, Way, measure},
    objects,
    options::Options,
    report::Report,
    world::{Running, World, deployment},
};

/// Name of the objects.
const NAME: &str = "web";

/// Runs the benchmark and adds its results to the report.
///
/// # Errors
///
/// The benchmark could not run.
pub(crate) async fn run(
    options: &Options,
    running: &Running<'_>,
    echo: &Echo,
    report: &mut Report,
) -> Result<(), String> {
    let (world, namespace) = (running.world, running.world.objects.name());
    let settings = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME, "namespace": namespace},
        "data": {"settings": "a".repeat(800)},
    });
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [settings, deployment(namespace, NAME)]});
    world.target.kubectl_with_input(["apply", "-f", "-"], &list.to_string()).await.ok()?;
    let kinds = vec![get(running)?, scale(running)?, get_operation(running), scale_operation(running)];
    measure(options, running, echo, kinds, report).await
}

fn get_call(world: &World) -> Call {
    Call::get(&format!("/api/v1/namespaces/{}/configmaps/{NAME}", world.objects.name()))
}

/// Sets a number of replicas that is another one for each call and each side.
fn replicas(number: usize, side: usize) -> usize {
    2 + (number * 2 + side) % 10_000
}

fn scale_call(namespace: &str, replicas: usize) -> Call {
    let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments/{NAME}/scale");
    Call::patch(&path, &json!({"spec": {"replicas": replicas}}))
}

/// The ways through the API of accounts.
fn doors(running: &Running<'_>) -> Result<Vec<Way>, String> {
    let mut ways = Way::both([running.gateway(0), running.gateway(1)]);
    let door = running.world.aggregated()?;
    ways.push(Way { name: "aggregated door", door, relayed: false, wanted: None });
    Ok(ways)
}

fn get(running: &Running<'_>) -> Result<Kind, String> {
    let direct = get_call(running.world);
    let through = direct.clone().below(&running.world.account_path(0));
    Ok(Kind {
        benchmark: "calls",
        what: "GET, API of accounts",
        direct: Box::new(move |_| vec![direct.clone()]),
        through: Box::new(move |_| through.clone()),
        tls: true,
        commits: 0,
        ways: doors(running)?,
    })
}

fn scale(running: &Running<'_>) -> Result<Kind, String> {
    let (namespace, account) = (running.world.objects.name().to_owned(), running.world.account_path(0));
    let of_account = namespace.clone();
    Ok(Kind {
        benchmark: "calls",
        what: "scale, API of accounts",
        direct: Box::new(move |number| vec![scale_call(&namespace, replicas(number, 0))]),
        through: Box::new(move |number| scale_call(&of_account, replicas(number, 1)).below(&account)),
        tls: true,
        commits: 0,
        ways: doors(running)?,
    })
}

/// An operation on the first account, whose answer is waited for.
pub(crate) fn operation(verb: &str, fields: &Value) -> Call {
    let mut operation = json!({"account": {"name": objects::name(0)}});
    operation[verb] = fields.clone();
    Call::post("/armory/agent/operations?wait=30s", &json!({"operation": operation}))
}

fn target(running: &Running<'_>, group: &str, kind: &str) -> Value {
    let namespace = running.world.objects.name();
    json!({"group": group, "version": "v1", "kind": kind, "namespace": namespace, "name": NAME})
}

fn get_operation(running: &Running<'_>) -> Kind {
    let direct = get_call(running.world);
    let through = operation("get", &json!({"target": target(running, "", "ConfigMap")}));
    Kind {
        benchmark: "calls",
        what: "get, operation",
        direct: Box::new(move |_| vec![direct.clone()]),
        through: Box::new(move |_| through.clone()),
        tls: false,
        commits: 2,
        ways: Way::both([running.rest(0), running.rest(1)]),
    }
}

fn scale_operation(running: &Running<'_>) -> Kind {
    let (namespace, target) =
        (running.world.objects.name().to_owned(), target(running, "apps", "Deployment"));
    Kind {
        benchmark: "calls",
        what: "scale, operation",
        direct: Box::new(move |number| vec![scale_call(&namespace, replicas(number, 0))]),
        through: Box::new(move |number| {
            operation("scale", &json!({"target": target, "replicas": replicas(number, 1)}))
        }),
        tls: false,
        commits: 2,
        ways: Way::both([running.rest(0), running.rest(1)]),
    }
}
