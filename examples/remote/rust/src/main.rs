//! A plugin of evald that dials out: it needs no port and no address, only evald's. `word-limit HOST:PORT`.
//!
//!     EVALD_CA_FILE                    the CA of the server's certificate; turns on TLS
//!     EVALD_CERT_FILE, EVALD_KEY_FILE  this program's certificate, for servers that ask for one
//!     EVALD_TOKEN_FILE                 the API key, read again for every session

mod evaluators;

#[allow(clippy::all)]
mod contract {
    include!(concat!(env!("OUT_DIR"), "/contract.rs"));
}

use std::collections::HashMap;
use std::error::Error;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{env, fs, process};

use tokio::signal::unix::{signal, Signal, SignalKind};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status};

use contract::evald::plugin::v1::attach_request::Frame as FromWorker;
use contract::evald::plugin::v1::attach_response::Frame as FromServer;
use contract::evald::plugin::v1::registry_service_client::RegistryServiceClient;
use contract::evald::plugin::v1::{
    AttachRequest, Capability, EvaluationTask, PluginInfo, Pong, TaskCompleted, WorkerDraining, WorkerHello,
};
use evaluators::{errored, evaluate, types};

const MAX_CONCURRENCY: i32 = 16;
const LONGEST_PAUSE: Duration = Duration::from_secs(3);
/// Added to the server's ping interval and timeout before its silence counts as the end.
const SLACK: Duration = Duration::from_secs(2);

type AnyError = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), AnyError> {
    let Some(server) = env::args().nth(1) else {
        eprintln!("usage: word-limit HOST:PORT");
        process::exit(2);
    };
    let instance_id = instance_id();
    let mut stop = signal(SignalKind::terminate())?;
    let mut pause = Duration::from_millis(100);
    let mut was_welcomed = false;
    loop {
        let mut welcomed = false;
        match session(&server, &instance_id, &mut stop, &mut welcomed).await {
            Ok(End::Stopped) => return Ok(()),
            Ok(End::ServerDrains(delay)) => pause = delay.max(Duration::from_millis(100)),
            Err(problem) => {
                let refusal = problem.downcast_ref::<Status>().is_some_and(is_final);
                eprintln!("{server}: {problem}");
                // Once it was accepted, a refusal may pass: keys and rules change.
                if refusal && !was_welcomed && !welcomed {
                    process::exit(1);
                }
            }
        }
        if welcomed {
            (was_welcomed, pause) = (true, pause.min(Duration::from_secs(1)));
        }
        tokio::select! {
            () = sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
            _ = stop.recv() => return Ok(()),
        }
    }
}

/// How a session ended without an error.
enum End {
    Stopped,
    ServerDrains(Duration),
}

/// One session, from hello to the end of the stream.
async fn session(
    server: &str,
    instance_id: &str,
    stop: &mut Signal,
    welcomed: &mut bool,
) -> Result<End, AnyError> {
    let (out, outgoing) = mpsc::unbounded_channel();
    let mut out = Some(out); // dropped to half-close the stream
    send(&out, FromWorker::Hello(hello(instance_id)));
    let mut request = Request::new(UnboundedReceiverStream::new(outgoing));
    if let Some(token) = token(server)? {
        request.metadata_mut().insert("authorization", format!("Bearer {token}").parse()?);
    }
    let mut client = RegistryServiceClient::new(channel(server).await?);
    let mut incoming = client.attach(request).await?.into_inner();
    let (done, mut completed) = mpsc::unbounded_channel::<TaskCompleted>();
    let mut open: HashMap<String, AbortHandle> = HashMap::new();
    let mut silence = Duration::from_secs(10);
    let mut end = None;
    loop {
        if end.is_some() && open.is_empty() {
            out = None;
        }
        tokio::select! {
            frame = timeout(silence, incoming.message()) => {
                let Some(frame) = frame.map_err(|_| "the server is silent")?? else {
                    return end.ok_or_else(|| "the server has ended the session".into());
                };
                match frame.frame {
                    Some(FromServer::Welcome(welcome)) => {
                        *welcomed = true;
                        println!("connected: session {} of server {}", welcome.session_id, welcome.server_id);
                        silence = seconds(welcome.ping_interval) + seconds(welcome.ping_timeout) + SLACK;
                    }
                    Some(FromServer::Task(task)) => {
                        // A task that is sent again joins the one that runs.
                        if !open.contains_key(&task.task_id) {
                            open.insert(task.task_id.clone(), start(task, done.clone()));
                        }
                    }
                    // A cancelled task is completed, too: that gives its credit back.
                    Some(FromServer::CancelTaskId(id)) => {
                        if let Some(task) = open.get(&id) {
                            task.abort();
                        }
                    }
                    Some(FromServer::Ping(ping)) => {
                        let pong = Pong { nonce: ping.nonce, active_tasks: open.len() as i32 };
                        send(&out, FromWorker::Pong(pong));
                    }
                    Some(FromServer::Draining(draining)) => {
                        end.get_or_insert(End::ServerDrains(seconds(draining.reconnect_delay)));
                    }
                    None => {} // of a later contract
                }
            }
            Some(result) = completed.recv() => {
                open.remove(&result.task_id);
                send(&out, FromWorker::Completed(result));
            }
            _ = stop.recv(), if !matches!(end, Some(End::Stopped)) => {
                send(&out, FromWorker::Draining(WorkerDraining { reason: "the plugin is stopping".to_owned() }));
                end = Some(End::Stopped);
            }
        }
    }
}

/// Starts a task. Its output goes to `done`, whatever becomes of it.
fn start(task: EvaluationTask, done: mpsc::UnboundedSender<TaskCompleted>) -> AbortHandle {
    let task_id = task.task_id.clone();
    let limit = task.timeout.map(|limit| seconds(Some(limit))).unwrap_or(Duration::from_secs(60));
    let work = tokio::spawn(async move {
        let (config, turn) = (task.config.unwrap_or_default(), task.context.unwrap_or_default());
        evaluate(&task.r#type, &task.version, &config, &turn)
    });
    let handle = work.abort_handle();
    let running = handle.clone();
    tokio::spawn(async move {
        let output = match timeout(limit, work).await {
            Ok(Ok(output)) => output,
            Ok(Err(problem)) if problem.is_cancelled() => errored("CANCELLED", "the task was cancelled"),
            Ok(Err(_)) => errored("EVALUATOR_EXCEPTION", "the evaluator panicked; the plugin's log says where"),
            Err(_) => {
                running.abort();
                errored("TIMEOUT", "the evaluator did not finish in time")
            }
        };
        let _ = done.send(TaskCompleted { task_id, output: Some(output) });
    });
    handle
}

fn hello(instance_id: &str) -> WorkerHello {
    WorkerHello {
        plugin: Some(PluginInfo {
            name: "acme.word-limit".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            contract_versions: vec!["evald.plugin.v1".to_owned()],
            evaluator_types: types(),
            max_concurrency: MAX_CONCURRENCY,
            capabilities: vec![Capability::Cancel.into()],
            sdk: "rust/tonic".to_owned(),
        }),
        instance_id: instance_id.to_owned(),
        initial_credit: MAX_CONCURRENCY,
        ..Default::default()
    }
}

fn send(out: &Option<mpsc::UnboundedSender<AttachRequest>>, frame: FromWorker) {
    if let Some(out) = out {
        let _ = out.send(AttachRequest { frame: Some(frame) }); // the stream's end is noticed where it is read
    }
}

async fn channel(server: &str) -> Result<Channel, AnyError> {
    let ca = pem("EVALD_CA_FILE")?;
    let scheme = if ca.is_some() { "https" } else { "http" };
    let mut endpoint = Endpoint::from_shared(format!("{scheme}://{server}"))?
        .connect_timeout(Duration::from_secs(5))
        .tcp_nodelay(true);
    if let Some(ca) = ca {
        let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca));
        if let (Some(cert), Some(key)) = (pem("EVALD_CERT_FILE")?, pem("EVALD_KEY_FILE")?) {
            tls = tls.identity(Identity::from_pem(cert, key));
        }
        endpoint = endpoint.tls_config(tls)?;
    }
    Ok(endpoint.connect().await?)
}

/// The API key. A key is never sent to another machine without TLS.
fn token(server: &str) -> Result<Option<String>, AnyError> {
    let Some(file) = setting("EVALD_TOKEN_FILE") else { return Ok(None) };
    let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
    if setting("EVALD_CA_FILE").is_none() && !matches!(host, "localhost" | "127.0.0.1" | "[::1]") {
        return Err("EVALD_TOKEN_FILE: a key for another machine needs TLS: set EVALD_CA_FILE".into());
    }
    let text = fs::read_to_string(&file).map_err(|problem| format!("EVALD_TOKEN_FILE {file}: {problem}"))?;
    Ok(Some(text.trim().to_owned()))
}

fn pem(name: &str) -> Result<Option<Vec<u8>>, AnyError> {
    setting(name).map(|file| fs::read(&file).map_err(|problem| format!("{name} {file}: {problem}").into())).transpose()
}

fn setting(name: &str) -> Option<String> {
    env::var(name).ok().filter(|text| !text.is_empty())
}

/// Whether trying again does not help: the plugin or its key is wrong.
fn is_final(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::InvalidArgument
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::FailedPrecondition
            | Code::Unimplemented
    )
}

fn seconds(duration: Option<prost_types::Duration>) -> Duration {
    duration.and_then(|duration| duration.try_into().ok()).unwrap_or_default()
}

/// Unique to this process.
fn instance_id() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("word-limit-{}-{:x}", process::id(), now.as_nanos())
}
