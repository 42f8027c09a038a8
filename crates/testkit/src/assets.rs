//! The programs of a control plane, found or built once from the pinned Go module in `controlplane/`; the judge of GitOps
//! health, kube-controller-manager, Helm, promtool with a reader of PromQL, the checkers of renders and workflows, and the
//! programs of a node, built once from the modules in `tests/gitops/`, `tests/controllers/`, `tests/helm/`,
//! `tests/promtool/`, `tests/lint/` and `tests/node-programs/`; and clients that use client-go, from
//! `tests/informer/`.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
    time::Duration,
};

use sha2::{Digest, Sha256};

use super::{process::Process, wait::Progress};

/// Paths of the programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assets {
    /// The store of the API server.
    pub etcd: PathBuf,
    /// The API server.
    pub kube_apiserver: PathBuf,
    /// The client.
    pub kubectl: PathBuf,
}

/// Result for the whole process, including an error: finding takes a moment, building takes minutes.
static FOUND: OnceLock<Result<Assets, String>> = OnceLock::new();
static JUDGE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
static INFORMER_FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
static CONTROLLERS_FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
static HELM_FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
static PROMETHEUS: OnceLock<Result<PrometheusTools, String>> = OnceLock::new();
static CHECKERS_FOUND: OnceLock<Result<Checkers, String>> = OnceLock::new();
static NODE: OnceLock<Result<NodePrograms, String>> = OnceLock::new();

/// Paths of what a node with real pods runs besides the control plane and the programs of its distribution.
#[derive(Debug, Clone)]
pub struct NodePrograms {
    /// Assigns pods to the node.
    pub scheduler: PathBuf,
    /// Runs pods.
    pub kubelet: PathBuf,
    /// Makes Services reachable.
    pub proxy: PathBuf,
    /// Answers for the names of Services.
    pub dns: PathBuf,
    /// Holds a pod's namespaces; the only program of its image.
    pub pause: PathBuf,
}

/// Paths of programs that check text.
#[derive(Debug, Clone)]
pub struct Checkers {
    /// Checks objects against the schemas of their kinds.
    pub kubeconform: PathBuf,
    /// Checks workflows of the forge.
    pub actionlint: PathBuf,
    /// Checks a plugin's manifest for krew.
    pub validate_krew_manifest: PathBuf,
}

/// Paths of programs that read rules and expressions as Prometheus does.
#[derive(Debug, Clone)]
pub struct PrometheusTools {
    /// Checks rules, and runs their unit tests.
    pub promtool: PathBuf,
    /// Prints the metrics and labels that expressions refer to.
    pub promql_references: PathBuf,
}

/// Builds the program that judges objects like Argo CD and Flux, unless the cache folder contains it.
///
/// Blocks. Call it from async code only where blocking is allowed.
///
/// # Errors
///
/// The message says what is missing and which command installs it.
pub fn gitops_judge() -> Result<PathBuf, String> {
    let build_it = || {
        let module = Module::read("tests/gitops", &["go.sum", "main.go"])?;
        cached(&module, &GITOPS_JUDGE)
    };
    JUDGE.get_or_init(build_it).clone()
}

/// Builds the clients that use client-go: caches, informers and GitOps tools, unless the cache folder contains them.
///
/// Blocks. Call it from async code only where blocking is allowed.
///
/// # Errors
///
/// The message says what is missing and which command installs it.
pub fn informer() -> Result<PathBuf, String> {
    let build_it = || {
        let sources = ["go.sum", "follow.go", "main.go", "use.go"];
        cached(&Module::read("tests/informer", &sources)?, &INFORMER)
    };
    INFORMER_FOUND.get_or_init(build_it).clone()
}

/// Builds kube-controller-manager, unless the cache folder contains it.
///
/// Blocks. Call it from async code only where blocking is allowed.
///
/// # Errors
///
/// The message says what is missing and which command installs it.
pub fn controller_manager() -> Result<PathBuf, String> {
    let build_it = || cached(&Module::read("tests/controllers", &["go.sum"])?, &CONTROLLER_MANAGER);
    CONTROLLERS_FOUND.get_or_init(build_it).clone()
}

/// Builds kube-scheduler, kubelet, kube-proxy, and the programs of `tests/node-programs`, unless the cache folder contains
/// them.
///
/// Blocks. Call it from async code only where blocking is allowed.
///
/// # Errors
///
/// The message says what is missing and which command installs it.
pub fn node_programs() -> Result<NodePrograms, String> {
    let build_them = || {
        let module = Module::read("tests/node-programs", &["go.sum", "dns/main.go", "pause/main.go"])?;
        Ok(NodePrograms {
            kubelet: cached(&module, &KUBELET)?,
            scheduler: cached(&module, &KUBE_SCHEDULER)?,
            proxy: cached(&module, &KUBE_PROXY)?,
            dns: cached(&module, &NODE_DNS)?,
            pause: cached(&module, &NODE_PAUSE)?,
        })
    };
    NODE.get_or_init(build_them).clone()
}

/// Builds Helm, unless the cache folder contains it.
///
/// Blocks. Call it from async code only where blocking is allowed.
///
/// # Errors
///
/// The message says what is missing and which command installs it.
pub fn helm() -> Result<PathBuf, String> {
    let build_it = || cached(&Module::read("tests/helm", &["go.sum"])?, &HELM);
    HELM_FOUND.get_or_init(build_it).clone()
}

/// Builds promtool and the reader of PromQL, unless the cache folder contains them.
///
/// Blocks. Call it from async code only where blocking is allowed.
///
/// # Errors
///
/// The message says what is missing and which command installs it.
pub fn prometheus_tools() -> Result<PrometheusTools, String> {
    let build_them = || {
        let module = Module::read("tests/promtool", &["go.sum", "main.go"])?;
        let (promtool, promql_references) =
            (cached(&module, &PROMTOOL)?, cached(&module, &PROMQL_REFERENCES)?);
        Ok(PrometheusTools { promtool, promql_references })
    };
    PROMETHEUS.get_or_init(build_them).clone()
}

/// Builds kubeconform, actionlint and krew's validator, unless the cache folder contains them.
///
/// Blocks. Call it from async code only where blocking is allowed.
///
/// # Errors
///
/// The message says what is missing and which command installs it.
pub fn checkers() -> Result<Checkers, String> {
    let build_them = || {
        let module = Module::read("tests/lint", &["go.sum"])?;
        Ok(Checkers {
            kubeconform: cached(&module, &KUBECONFORM)?,
            actionlint: cached(&module, &ACTIONLINT)?,
            validate_krew_manifest: cached(&module, &VALIDATE_KREW_MANIFEST)?,
        })
    };
    CHECKERS_FOUND.get_or_init(build_them).clone()
}

/// Finds the programs or builds those that are missing. In this order: `KUBEBUILDER_ASSETS`, a suitable version on
/// `PATH`, the cache folder, and a build from `controlplane/` into the cache folder.
///
/// Blocks. Call it from async code only where blocking is allowed.
///
/// # Errors
///
/// The message says what is missing and which command installs it.
pub fn ensure() -> Result<Assets, String> {
    FOUND.get_or_init(find).clone()
}

/// Returns the versions that kube-apiserver and etcd report: `Kubernetes v1.36.3`, `etcd 3.6.16`.
///
/// # Errors
///
/// One of them is missing or does not start.
pub fn versions() -> Result<(String, String), String> {
    let Assets { etcd, kube_apiserver, .. } = ensure()?;
    let said = |path: &Path| {
        let printed = Command::new(path).arg("--version").stdin(Stdio::null()).output();
        let printed = printed.map_err(|e| format!("{}: {e}", path.display()))?;
        let text = String::from_utf8_lossy(&printed.stdout).into_owned();
        Ok::<_, String>(text.lines().next().unwrap_or_default().replace(" Version:", ""))
    };
    Ok((said(&kube_apiserver)?, said(&etcd)?))
}

fn find() -> Result<Assets, String> {
    if let Some(folder) = std::env::var_os("KUBEBUILDER_ASSETS").filter(|folder| !folder.is_empty()) {
        return from_envtest(Path::new(&folder));
    }
    let module = Module::read("controlplane", &["go.sum"])?;
    Ok(Assets {
        etcd: find_one(&module, &ETCD)?,
        kube_apiserver: find_one(&module, &KUBE_APISERVER)?,
        kubectl: find_one(&module, &KUBECTL)?,
    })
}

/// An explicitly configured folder is used alone and with any version, which allows tests against another Kubernetes
/// version.
fn from_envtest(folder: &Path) -> Result<Assets, String> {
    let program = |name: &str| {
        let path = folder.join(name);
        if path.is_file() {
            return Ok(path);
        }
        Err(format!(
            "KUBEBUILDER_ASSETS is {}, and there is no {name} in it. Fill it with `setup-envtest use`, or unset it: \
             then the programs are built from controlplane/",
            folder.display()
        ))
    };
    Ok(Assets {
        etcd: program("etcd")?,
        kube_apiserver: program("kube-apiserver")?,
        kubectl: program("kubectl")?,
    })
}

/// A program, its package in the Go module, and which versions on `PATH` are acceptable.
struct Program {
    name: &'static str,
    package: &'static str,
    module: &'static str,
    version_args: &'static [&'static str],
    /// Maximum difference to the pinned minor version.
    skew: u32,
}

const KUBERNETES: &str = "k8s.io/kubernetes";
const ETCD: Program = Program {
    name: "etcd",
    package: "go.etcd.io/etcd/server/v3",
    module: "go.etcd.io/etcd/server/v3",
    version_args: &["--version"],
    skew: 0,
};
const KUBE_APISERVER: Program = Program {
    name: "kube-apiserver",
    package: "k8s.io/kubernetes/cmd/kube-apiserver",
    module: KUBERNETES,
    version_args: &["--version"],
    skew: 0,
};
const KUBECTL: Program = Program {
    name: "kubectl",
    package: "k8s.io/kubernetes/cmd/kubectl",
    module: KUBERNETES,
    version_args: &["version", "--client"],
    skew: 1,
};
const GITOPS_JUDGE: Program = Program {
    name: "gitops-judge",
    package: ".",
    module: "github.com/fluxcd/cli-utils",
    version_args: &[],
    skew: 0,
};

const INFORMER: Program =
    Program { name: "informer", package: ".", module: "k8s.io/client-go", version_args: &[], skew: 0 };

const CONTROLLER_MANAGER: Program = Program {
    name: "kube-controller-manager",
    package: "k8s.io/kubernetes/cmd/kube-controller-manager",
    module: KUBERNETES,
    version_args: &["--version"],
    skew: 0,
};

const KUBELET: Program = Program {
    name: "kubelet",
    package: "k8s.io/kubernetes/cmd/kubelet",
    module: KUBERNETES,
    version_args: &["--version"],
    skew: 0,
};
const KUBE_SCHEDULER: Program = Program {
    name: "kube-scheduler",
    package: "k8s.io/kubernetes/cmd/kube-scheduler",
    module: KUBERNETES,
    version_args: &["--version"],
    skew: 0,
};
const KUBE_PROXY: Program = Program {
    name: "kube-proxy",
    package: "k8s.io/kubernetes/cmd/kube-proxy",
    module: KUBERNETES,
    version_args: &["--version"],
    skew: 0,
};
const NODE_DNS: Program =
    Program { name: "dns", package: "./dns", module: "k8s.io/client-go", version_args: &[], skew: 0 };
const NODE_PAUSE: Program =
    Program { name: "pause", package: "./pause", module: KUBERNETES, version_args: &[], skew: 0 };

const HELM: Program = Program {
    name: "helm",
    package: "helm.sh/helm/v4/cmd/helm",
    module: "helm.sh/helm/v4",
    version_args: &["version"],
    skew: 0,
};

/// Leaves the service discoveries of all clouds out of promtool, which are most of its build. No other program knows it.
const BUILD_TAGS: &str = "-tags=remove_all_sd";
const PROMETHEUS_MODULE: &str = "github.com/prometheus/prometheus";
const PROMTOOL: Program = Program {
    name: "promtool",
    package: "github.com/prometheus/prometheus/cmd/promtool",
    module: PROMETHEUS_MODULE,
    version_args: &["--version"],
    skew: 0,
};
const PROMQL_REFERENCES: Program = Program {
    name: "promql-references",
    package: ".",
    module: PROMETHEUS_MODULE,
    version_args: &[],
    skew: 0,
};

const KUBECONFORM: Program = Program {
    name: "kubeconform",
    package: "github.com/yannh/kubeconform/cmd/kubeconform",
    module: "github.com/yannh/kubeconform",
    version_args: &["-v"],
    skew: 0,
};
const VALIDATE_KREW_MANIFEST: Program = Program {
    name: "validate-krew-manifest",
    package: "sigs.k8s.io/krew/cmd/validate-krew-manifest",
    module: "sigs.k8s.io/krew",
    version_args: &[],
    skew: 0,
};
const ACTIONLINT: Program = Program {
    name: "actionlint",
    package: "github.com/rhysd/actionlint/cmd/actionlint",
    module: "github.com/rhysd/actionlint",
    version_args: &["-version"],
    skew: 0,
};

fn find_one(module: &Module, program: &Program) -> Result<PathBuf, String> {
    if let Some(path) = on_path(module, program)? {
        return Ok(path);
    }
    cached(module, program)
}

fn cached(module: &Module, program: &Program) -> Result<PathBuf, String> {
    // Read even if there is nothing to build, so that a mistake in go.mod shows on each machine, not on a new one alone.
    let version = module.version(program.module)?;
    let path = module.cache.join(program.name);
    if !path.is_file() {
        build(module, program, version, &path)?;
    }
    Ok(path)
}

fn on_path(module: &Module, program: &Program) -> Result<Option<PathBuf>, String> {
    let wanted = minor(module.version(program.module)?)
        .ok_or_else(|| format!("{}/go.mod: no version of {}", module.name, program.module))?;
    Ok(look_up(program.name).filter(|path| {
        let printed = Command::new(path).args(program.version_args).stdin(Stdio::null()).output();
        printed
            .ok()
            .and_then(|output| minor(&String::from_utf8_lossy(&output.stdout)))
            .is_some_and(|(major, minor)| major == wanted.0 && minor.abs_diff(wanted.1) <= program.skew)
    }))
}

pub(super) fn look_up(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Returns major and minor of the first version in a text: `etcd Version: 3.6.16`, `Kubernetes v1.36.3`, `go1.26.1`.
fn minor(text: &str) -> Option<(u32, u32)> {
    text.split(|c: char| !(c.is_ascii_digit() || c == '.')).find_map(|word| {
        let mut parts = word.split('.');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    })
}

/// A Go module of this repository.
struct Module {
    /// Path of the folder, relative to the root of the repository.
    name: &'static str,
    folder: PathBuf,
    text: String,
    /// Cache folder outside the checkout, one for each content of the files that determine the build.
    cache: PathBuf,
}

impl Module {
    /// Reads the module in a folder. A build from it depends on the files `sources`.
    fn read(name: &'static str, sources: &[&str]) -> Result<Self, String> {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(name);
        let read = |name: &str| {
            let path = folder.join(name);
            std::fs::read_to_string(&path)
                .map_err(|e| format!("{}: {e}: is the checkout whole? `git status` tells", path.display()))
        };
        let text = read("go.mod")?;
        let mut digest = Sha256::new();
        for source in sources {
            digest.update(read(source)?);
        }
        let key = hex::encode(digest.finalize());
        let short = name.rsplit('/').next().unwrap_or(name);
        let cache = cache_home()?.join("kubesvc").join(short).join(&key[..16]);
        Ok(Self { name, folder, text, cache })
    }

    /// Returns the version that `go.mod` requires.
    fn version(&self, module: &str) -> Result<&str, String> {
        self.text
            .lines()
            .filter_map(|line| {
                let line = line.trim();
                let required = line.strip_prefix("require ").unwrap_or(line);
                required.strip_prefix(module)?.strip_prefix(" v")?.split_whitespace().next()
            })
            .next()
            .ok_or_else(|| format!("{}/go.mod does not require {module}", self.name))
    }
}

pub(super) fn cache_home() -> Result<PathBuf, String> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("XDG_CACHE_HOME")
        .filter(|path| path.is_absolute())
        .or_else(|| set("HOME").map(|home| home.join(".cache")))
        .ok_or_else(|| {
            "neither XDG_CACHE_HOME nor HOME is set, so there is no cache folder: set one of them".into()
        })
}

fn build(module: &Module, program: &Program, version: &str, path: &Path) -> Result<(), String> {
    std::fs::create_dir_all(&module.cache).map_err(|e| format!("{}: {e}", module.cache.display()))?;
    let _lock = lock(&module.cache, program.name)?;
    if path.is_file() {
        return Ok(());
    }
    let go = go()?;
    let name = program.name;
    let part = module.cache.join(format!("{name}.part"));
    let log = module.cache.join(format!("{name}.log"));
    // Left behind by an interrupted build. No other process builds while this one holds the lock.
    for old in [&part, &log] {
        if old.exists() {
            std::fs::remove_file(old).map_err(|e| format!("{}: {e}", old.display()))?;
        }
    }
    let mut command = Command::new(go);
    command
        .current_dir(&module.folder)
        .env("CGO_ENABLED", "0")
        .env("GOWORK", "off")
        .arg("build")
        .args(["-trimpath", "-mod=readonly", "-buildvcs=false", BUILD_TAGS])
        .arg(format!("-ldflags=-s -w -X k8s.io/component-base/version.gitVersion=v{version}"))
        .arg("-o")
        .args([part.as_path(), Path::new(program.package)]);
    let mut progress = Progress::start(&format!("building {name} {version} (once, some minutes)"));
    let process = Process::spawn("go build", &command, &log)?;
    let status = process.wait_shown(&mut progress);
    if !status.success() {
        progress.finish("failed");
        return Err(format!(
            "building {name} from {}/ failed; the end of {}:\n{}\nIf it cannot reach a Go module proxy, set GOPROXY to \
             one that it can; for the control plane, KUBEBUILDER_ASSETS to a folder with etcd, kube-apiserver and kubectl \
             does as well",
            module.name,
            log.display(),
            process.log_tail(15)
        ));
    }
    std::fs::rename(&part, path).map_err(|e| format!("{}: {e}", path.display()))?;
    progress.finish(&format!("{}", path.display()));
    Ok(())
}

/// Takes the build lock, which is held until the file is closed. The system releases it if the process dies.
pub(super) fn lock(cache: &Path, name: &str) -> Result<File, String> {
    let path = cache.join(format!("{name}.lock"));
    let problem = |e: std::io::Error| format!("{}: {e}", path.display());
    let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(problem)?;
    let mut progress: Option<Progress> = None;
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(std::fs::TryLockError::WouldBlock) => progress
                .get_or_insert_with(|| {
                    Progress::start(&format!("another process builds; waiting for {name}"))
                })
                .tick(),
            Err(std::fs::TryLockError::Error(e)) => return Err(problem(e)),
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    if let Some(progress) = progress {
        progress.finish("its turn");
    }
    Ok(file)
}

/// Finds the Go command. From 1.21 on, Go downloads the version that `go.mod` requires.
fn go() -> Result<PathBuf, String> {
    const GET: &str = "`apt-get install golang-go` gets it (on Debian 12 `apt-get install -t bookworm-backports golang-go`), \
                       `dnf install golang`, or `brew install go`. \
                       For the control plane, KUBEBUILDER_ASSETS set to a folder with etcd, kube-apiserver and kubectl does as well";
    const NEED: &str = "what the tests need is built from controlplane/, and tests/{controllers,gitops,helm,informer,lint,node-programs,promtool}/ with Go 1.26, \
                        or with Go 1.21 and newer, which fetches that by itself";
    let path = look_up("go").ok_or_else(|| format!("{NEED}, and there is no `go` on PATH: {GET}"))?;
    let output = Command::new(&path)
        .args(["env", "GOVERSION"])
        .env("GOTOOLCHAIN", "local")
        .output()
        .map_err(|e| format!("{}: {e}", path.display()))?;
    let printed = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    match minor(&printed) {
        Some(version) if version < (1, 21) => Err(format!("{NEED}; {} is {printed}: {GET}", path.display())),
        Some(_) => Ok(path),
        None => Err(format!("{}: `go env GOVERSION` answers {printed:?}: {GET}", path.display())),
    }
}
