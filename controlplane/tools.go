//go:build tools

// Package controlplane pins the programs of a real Kubernetes control plane for the tests and the demo.
//
// Nothing here is linked into kubesvc. The module exists so that go.sum fixes every byte that goes into these
// programs; crates/testkit/src/assets.rs builds them and keeps them in a cache folder keyed by go.sum.
package controlplane

import (
	_ "go.etcd.io/etcd/server/v3"
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kubectl"
)
