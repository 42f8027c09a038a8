//go:build tools

// Pins promtool, which checks rules and runs their unit tests. go.sum fixes every byte that goes into it;
// crates/testkit/src/assets.rs builds it without service discoveries (the build tag remove_all_sd) and keeps it in a cache
// folder keyed by go.sum.
package main

import (
	_ "github.com/prometheus/prometheus/cmd/promtool"
)
