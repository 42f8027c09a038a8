//! The keys of the operator's file that have no effect, or are refused, each with the reason.

use kubesvc_runtime::config::Unread::{self, Inert, Refused};
use kubesvc_runtime::config::{ANY, SECRET};

const NO_POOL: &str = "writes to the cache are batched, not given to a pool of threads";
const NO_V2: &str = "there is no V2 provider in this program";
const REST_TLS: &str = "only PEM files are read: name them in server.ssl.certificate, certificatePrivateKey and \
    trustCertificate (openssl pkcs12 -in STORE -nodes -out FILE.pem)";
const REST_TLS_ELSE: &str =
    "REST serves TLS 1.3 and 1.2 with all suites that have AEAD, and nothing else is chosen; leave this out";

pub(super) const KEYS: &[Unread] = &[
    Refused(
        REST_TLS,
        "server.ssl",
        &[
            ("bundle", ANY, "", "the same, under a name"),
            ("keyStore", ANY, "", "certificates of REST, in a Java key store"),
            ("keyStorePassword", SECRET, "", "password of that store"),
            ("trustStore", ANY, "", "who signs callers' certificates, likewise"),
            ("trustStorePassword", SECRET, "", "password of that store"),
        ],
    ),
    Refused(REST_TLS_ELSE, "server.ssl", &[("*", SECRET, "", "all else about TLS")]),
    Inert(
        NO_POOL,
        ANY,
        "kubesvc.cache",
        &[
            ("cacheStreamingPoolCoreSize", "threads that write to the cache"),
            ("cacheStreamingPoolMaxSize", "most threads that write to the cache"),
        ],
    ),
    Inert(
        "namespaces are watched and always current",
        ANY,
        "kubesvc.cache",
        &[("namespaceExpiryMinutes", "age of remembered namespaces")],
    ),
    Inert(
        "operations reach their replica directly, not by scanning a table",
        ANY,
        "kubesvc.operations.database.scan",
        &[("*", "scan for operations")],
    ),
    Inert(
        NO_V2,
        ANY,
        "kubesvc",
        &[
            ("disableV2Provider", "leave the V2 provider out"),
            ("v2-cache-eviction.disable", "keep the V2 provider's cache"),
            ("v2-cache-eviction.batch-size", "kinds removed from that cache at once"),
            ("v2-cache-eviction.millis", "time between two removals"),
        ],
    ),
    Inert(
        "there is one way in which accounts are spread over agents",
        ANY,
        "kubesvc",
        &[("loadBalancer", "how accounts are spread")],
    ),
];
