// Reads a JSON object of PromQL expressions, by name, and prints what each of them refers to, as Prometheus itself
// reads it: metrics, the labels that select them, and the labels by which operators group or match series.
//
// An expression that Prometheus refuses ends the program with a message that names it.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"sort"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

type matcher struct {
	Label string `json:"label"`
	Op    string `json:"op"`
	Value string `json:"value"`
}

type selector struct {
	Metric   string    `json:"metric"`
	Matchers []matcher `json:"matchers"`
}

// grouping holds the labels of a `by`, `without`, `on`, `ignoring` or `group_left`, and the metrics below it.
type grouping struct {
	Labels  []string `json:"labels"`
	Metrics []string `json:"metrics"`
}

type references struct {
	Selectors []selector `json:"selectors"`
	Groupings []grouping `json:"groupings"`
}

func main() {
	var expressions map[string]string
	if err := json.NewDecoder(os.Stdin).Decode(&expressions); err != nil {
		fail("the input is not an object of expressions: %v", err)
	}
	found := map[string]references{}
	read := parser.NewParser(parser.Options{})
	for name, text := range expressions {
		expression, err := read.ParseExpr(text)
		if err != nil {
			fail("%s: %v\n%s", name, err, text)
		}
		found[name] = referencesOf(expression)
	}
	if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
		fail("the output cannot be written: %v", err)
	}
}

func fail(format string, arguments ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", arguments...)
	os.Exit(1)
}

func referencesOf(expression parser.Expr) references {
	found := references{Selectors: []selector{}, Groupings: []grouping{}}
	parser.Inspect(expression, func(node parser.Node, _ []parser.Node) error {
		switch node := node.(type) {
		case *parser.VectorSelector:
			found.Selectors = append(found.Selectors, selectorOf(node))
		case *parser.AggregateExpr:
			found.group(node.Grouping, node.Expr)
		case *parser.BinaryExpr:
			if node.VectorMatching != nil {
				found.group(node.VectorMatching.MatchingLabels, node)
				found.group(node.VectorMatching.Include, node)
			}
		}
		return nil
	})
	return found
}

func (r *references) group(names []string, below parser.Expr) {
	if len(names) == 0 {
		return
	}
	metrics := map[string]bool{}
	parser.Inspect(below, func(node parser.Node, _ []parser.Node) error {
		if node, ok := node.(*parser.VectorSelector); ok {
			metrics[selectorOf(node).Metric] = true
		}
		return nil
	})
	one := grouping{Labels: names, Metrics: []string{}}
	for metric := range metrics {
		one.Metrics = append(one.Metrics, metric)
	}
	sort.Strings(one.Metrics)
	r.Groupings = append(r.Groupings, one)
}

func selectorOf(node *parser.VectorSelector) selector {
	one := selector{Metric: node.Name, Matchers: []matcher{}}
	for _, m := range node.LabelMatchers {
		if m.Name == labels.MetricName {
			one.Metric = m.Value
			continue
		}
		one.Matchers = append(one.Matchers, matcher{Label: m.Name, Op: m.Type.String(), Value: m.Value})
	}
	return one
}
