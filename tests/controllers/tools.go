//go:build tools

// Package controllers pins the kube-controller-manager that rolls out, collects garbage and empties namespaces in the
// tests that need it. It is a module of its own, so that the others need not build its kubelet's dependencies.
//
// Nothing here is linked into kubesvc. crates/testkit/src/assets.rs builds it and keeps it in a cache folder keyed by
// go.sum.
package controllers

import _ "k8s.io/kubernetes/cmd/kube-controller-manager"
