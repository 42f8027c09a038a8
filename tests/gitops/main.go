// Says how GitOps tools judge Kubernetes objects: Flux by kstatus, Argo CD by a health script in Lua.
//
// It reads objects from standard input, one JSON object a line, and answers each with one line:
//
//	{"kstatus": "Current", "kstatusMessage": "…", "argo": "Healthy", "argoMessage": "…"}
//
// The Lua file is its only argument. It is run as Argo CD runs the scripts of resource.customizations.health: with the
// libraries base, table and package and no others, the object in the global `obj`, one second of time, and a table
// with `status` and `message` as the result. An object that is being deleted is never given to a script.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const (
	maxLine   = 4 << 20
	luaPeriod = time.Second
)

type verdict struct {
	Kstatus        string `json:"kstatus"`
	KstatusMessage string `json:"kstatusMessage"`
	Argo           string `json:"argo"`
	ArgoMessage    string `json:"argoMessage"`
}

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(arguments []string, in io.Reader, out io.Writer) error {
	if len(arguments) != 1 {
		return fmt.Errorf("the one argument is the Lua file of Argo CD's health check")
	}
	script, err := os.ReadFile(arguments[0])
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	answers := json.NewEncoder(out)
	for number := 1; lines.Scan(); number++ {
		answer, err := judge(string(script), lines.Bytes())
		if err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
		if err := answers.Encode(answer); err != nil {
			return err
		}
	}
	return lines.Err()
}

func judge(script string, line []byte) (*verdict, error) {
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(line); err != nil {
		return nil, err
	}
	result, err := status.Compute(object)
	if err != nil {
		return nil, err
	}
	health, message, err := argoHealth(script, object)
	if err != nil {
		return nil, err
	}
	return &verdict{
		Kstatus:        result.Status.String(),
		KstatusMessage: result.Message,
		Argo:           health,
		ArgoMessage:    message,
	}, nil
}

func argoHealth(script string, object *unstructured.Unstructured) (string, string, error) {
	if object.GetDeletionTimestamp() != nil {
		return "Progressing", "Pending deletion", nil
	}
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	libraries := []struct {
		name string
		open lua.LGFunction
	}{
		{lua.LoadLibName, lua.OpenPackage},
		{lua.BaseLibName, lua.OpenBase},
		{lua.TabLibName, lua.OpenTable},
	}
	for _, library := range libraries {
		parameters := lua.P{Fn: state.NewFunction(library.open), NRet: 0, Protect: true}
		if err := state.CallByParam(parameters, lua.LString(library.name)); err != nil {
			return "", "", err
		}
	}
	ending, cancel := context.WithTimeout(context.Background(), luaPeriod)
	defer cancel()
	state.SetContext(ending)
	state.SetGlobal("obj", value(state, object.Object))
	if err := state.DoString(script); err != nil {
		return "", "", fmt.Errorf("the health script: %w", err)
	}
	table, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		return "", "", fmt.Errorf("the health script returned %s and no table", state.Get(-1).Type())
	}
	health, message := text(table, "status"), text(table, "message")
	switch health {
	case "Healthy", "Progressing", "Degraded", "Suspended", "Missing", "Unknown":
		return health, message, nil
	}
	return "", "", fmt.Errorf("the health script returned the status %q, which Argo CD does not know", health)
}

func text(table *lua.LTable, key string) string {
	if value, ok := table.RawGetString(key).(lua.LString); ok {
		return string(value)
	}
	return ""
}

// value is a piece of JSON as Lua sees it.
func value(state *lua.LState, from any) lua.LValue {
	switch from := from.(type) {
	case bool:
		return lua.LBool(from)
	case int64:
		return lua.LNumber(from)
	case float64:
		return lua.LNumber(from)
	case string:
		return lua.LString(from)
	case []any:
		table := state.CreateTable(len(from), 0)
		for _, item := range from {
			table.Append(value(state, item))
		}
		return table
	case map[string]any:
		table := state.CreateTable(0, len(from))
		for key, item := range from {
			table.RawSetString(key, value(state, item))
		}
		return table
	}
	return lua.LNil
}
