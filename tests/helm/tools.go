//go:build tools

// Package helm pins the program that installs the charts in the tests.
//
// Nothing here is linked into kubesvc. The module exists so that go.sum fixes every byte that goes into Helm;
// crates/testkit/src/assets.rs builds it and keeps it in a cache folder keyed by go.sum.
package helm

import _ "helm.sh/helm/v4/cmd/helm"
