//go:build tools

// Package lint pins the programs that check what the charts render, the release workflow, and the plugin's manifest for
// krew.
//
// Nothing here is linked into kubesvc. The module exists so that go.sum fixes every byte that goes into them;
// crates/testkit/src/assets.rs builds them and keeps them in a cache folder keyed by go.sum.
package lint

import (
	_ "github.com/rhysd/actionlint/cmd/actionlint"
	_ "github.com/yannh/kubeconform/cmd/kubeconform"
	_ "sigs.k8s.io/krew/cmd/validate-krew-manifest"
)
