//! `--print-config`, and what it hides.

use super::{Files, agent, operator};
use kubesvc_runtime::config::{UnknownKeys, redact_url};

#[test]
fn each_setting_says_where_it_came_from() {
    let yaml = "server.port: 1\nkubesvc:\n  database.url: mysql://u:hunter2@h:3306/d?ssl-key=hunter2&x=1\n  cluster: local\n  dynamicAccounts.interceptor.enabled: false\n\
                logging.fields: {a.b: '\"c\" #d', e: f}\n";
    let files = Files::new(&[("c.yml", yaml)]);
    let mut loaded = files.operator(&["c.yml"], UnknownKeys::Error).expect("valid");
    loaded.set("kubesvc.watchNamespaces", "*", "--all").expect("all");
    let want = r#"server:
  address: "*"  # default
  port: 1  # c.yml:1
  maxBodyBytes: 8388608  # default
  health:
    port: 0  # default
  limits:
    perAddress: 256  # default
    exempt: []  # default
  hosts: []  # default
  cors:
    allowedOrigins: []  # default
  ssl:
    enabled: false  # default
    certificate: null  # default
    certificatePrivateKey: null  # default
    keyPassword: null  # default
    clientAuth: "none"  # default
    trustCertificate: null  # default
kubesvc:
  grpc:
    server:
      address: "*"  # default
      port: 9091  # default
      healthServiceEnabled: true  # default
      maxInboundMessageSize: 4194304  # default
      limits:
        perAddress: 0  # default
        exempt: []  # default
      security:
        keepAliveHeartbeatSeconds: 20  # default
        KeepAliveTimeOutSeconds: 20  # default
        enabled: false  # default
        certificateChain: null  # default
        privateKey: null  # default
        privateKeyPassword: null  # default
        clientAuth: "NONE"  # default
        trustCertCollection: null  # default
        ciphers: []  # default
        protocols: []  # default
        reloadSeconds: 10  # default
        crlFiles: []  # default
        ownCertificate: false  # default
    auth:
      mode: "open"  # default
      x509:
        enabled: false  # default
        filters: []  # default
        match: "attribute"  # default
      bearer:
        tokenReview: false  # default
        issuers: []  # default
  database:
    url: "mysql://u:***@h:3306/d?ssl-key=***&x=1"  # c.yml:3
    takeOver: false  # default
  watchNamespaces: ["*"]  # flag --all
  secrets:
    folders: []  # default
    namespaces: []  # default
    noop: true  # default
  cache:
    operationWaitMs: 30000  # default
    onDemandQuickWaitMs: 10000  # default
    accountCleanupFrequencySeconds: 600  # default
    cleanDataWithUnusedAccounts: true  # default
    cacheDefaults: null  # default
    cacheKinds: null  # default
    cacheOmitKinds: []  # default
    cacheAll: false  # default
    bodyFormat: "text"  # default
    eventsCleanupFrequencySeconds: 7200  # default
    pendingBytes: 268435456  # default
    writers: 2  # default
  dynamicAccounts:
    enabled: true  # default
    maxRetries: 3  # default
    retryFrequencySeconds: 5  # default
    retryMultiplier: 2  # default
    retryMaxDelaySeconds: 300  # default
    orphanGraceSeconds: 30  # default
    adoptRows: false  # default
    agentWins: false  # default
    namespace: null  # default
    namePatterns: []  # default
    credentialScanNamePatterns: []  # default
    scanBatchSize: 572  # default
    scanFrequencySeconds: 120  # default
    interceptor:
      enabled: false  # c.yml:5
  kubernetes:
    qps: 200  # default
    burst: 400  # default
    registrationQps: 50  # default
  agents:
    approval: "auto"  # default
    forgetApprovedAfterSeconds: 2592000  # default
    offers: true  # default
  accounts:
    agentSources: ["*"]  # default
    operatorFiles: ["*"]  # default
  runtime:
    defaults:
      onlySpinnakerManaged: false  # default
      customResources: []  # default
    accounts: {}  # default
  clouddriver:
    sources: []  # default
    vars:
    fileRoots: []  # default
    baseUrl: null  # default
    passThrough: "none"  # default
    passSecrets: false  # default
    tls:
      caFile: null  # default
      certificateFile: null  # default
      keyFile: null  # default
    push:
      enabled: false  # default
      namespaces: []  # default
      user: "kubesvc"  # default
      gateway: null  # default
      tokenFile: "/var/run/secrets/kubesvc/token"  # default
      caFile: "/var/run/secrets/kubesvc/ca.crt"  # default
      pollSeconds: 30  # default
      resyncSeconds: 300  # default
      cacheIntervalSeconds: 30  # default
      removalWaitSeconds: 60  # default
      fillNamespaces: false  # default
      force: false  # default
  credentials:
    poller:
      reloadFrequencyMs: 30000  # default
  cluster: "local"  # c.yml:4
  cluster-kubernetes:
    kubeconfigFile: null  # default
    verifySsl: true  # default
    namespace: null  # default
    httpPortName: "http"  # default
    clouddriverServiceNamePrefix: "spin-clouddriver"  # default
    failFast: true  # default
    useDNS: false  # default
    domainName: "cluster.local"  # default
  replicas:
    port: 7004  # default
  leaderElection:
    leaseDurationSeconds: 15  # default
    renewDeadlineSeconds: 10  # default
    retryPeriodSeconds: 2  # default
  heartbeat:
    enabled: true  # default
    initialDelay: 0  # default
    period: 60  # default
    periodUnit: "SECONDS"  # default
  operations:
    auth: "required"  # default
    retry:
      maxRetries: 3  # default
    history:
      maxRows: 1000000  # default
  jobs:
    operation-history:
      purge:
        weeks: 1  # default
        cron: "0 0 0 * * 0"  # default
  ops:
    processTime:
      metric:
        result:
          maxLength: 255  # default
  gateway:
    enabled: false  # default
    server:
      address: "*"  # default
      port: 6443  # default
      limits:
        perAddress: 256  # default
        exempt: []  # default
    tls:
      certificateFile: null  # default
      keyFile: null  # default
  rest:
    auth:
      mode: "off"  # default
      certificates: []  # default
  audit:
    output: "stdout"  # default
logging:
  level: "info"  # default
  format: "auto"  # default
  fields:
    "[a.b]": "\"c\" #d"  # c.yml:6
    "e": "f"  # c.yml:6
"#;
    assert_eq!(files.short(&loaded.print()), want);
    assert!(!format!("{loaded:?} {:?}", loaded.settings).contains("hunter2"));
}

#[test]
fn keys_that_are_no_settings_are_named_at_the_end() {
    let loaded =
        operator("server: {port: 7003, maxBodyByte: 1, tomcat.threads.max: 3}\nredis: 5").expect("valid");
    let printed = loaded.print();
    let last = printed.lines().last().unwrap_or_default();
    let named =
        "c.yml: ignored settings of other programs: redis, server.maxBodyByte, server.tomcat.threads.max";
    assert!(last.starts_with("# ") && last.ends_with(named), "{last}");
    assert_eq!(operator(&printed).expect("what was printed is valid").settings, loaded.settings);
}

#[test]
fn what_is_printed_loads_to_the_same() {
    let first = operator("kubesvc.watchNamespaces: [a]\nlogging.fields: {a.b: c, d: '[]'}").expect("valid");
    let second = operator(&first.print()).expect("what was printed is valid");
    assert_eq!(first.settings, second.settings);
    let first = agent("zoneId: 'a: b # c'\nlogging.level: fatal").expect("valid");
    let second = agent(&first.print()).expect("what was printed is valid");
    assert_eq!(first.settings, second.settings);
}

#[test]
fn addresses_of_databases_lose_their_passwords() {
    let cases = [
        ("sqlite://kubesvc.db", "sqlite://kubesvc.db"),
        ("sqlite:///var/lib/a@b.db", "sqlite:///var/lib/a@b.db"),
        ("sqlite://:memory:", "sqlite://:memory:"),
        ("sqlite://x.db?mode=rwc&key=k", "sqlite://x.db?mode=rwc&key=***"),
        ("mysql://h/d", "mysql://h/d"),
        ("mysql://u@h/d", "mysql://u@h/d"),
        ("mysql://u:p@h/d", "mysql://u:***@h/d"),
        ("mysql://u:p@q@h/d", "mysql://u:***@h/d"),
        ("mysql://u:1/p@h/d", "***"),
        ("mysql://u:1?p@h/d", "***"),
        ("mysql://u:1#p@h/d", "***"),
        ("mysql://u:p/q@h/d", "***"),
        (
            "postgres://u:p@h/d?sslpassword=x&sslmode=require",
            "postgres://u:***@h/d?sslpassword=***&sslmode=require",
        ),
        ("hunter2", "***"),
        ("", "***"),
    ];
    for (url, want) in cases {
        assert_eq!(redact_url(url), want, "{url}");
    }
}
