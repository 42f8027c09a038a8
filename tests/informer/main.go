// Uses a cluster with client-go as caches, controllers and GitOps tools in Go do.
//
//	informer KUBECONFIG RESOURCE...                   keeps resources in memory (below)
//	informer follow KUBECONFIG STORE NAMESPACE RESOURCE   keeps what an informer knows in a file (follow.go)
//	informer use kubeconfig|argocd|flux FILE          uses a credential as the tool does (use.go)
//
// The benchmarks compare the agent's memory with the first. Its arguments are a kubeconfig and resources, each as
// group/version/resource ("/v1/pods" for core). It prints one line when all of them are listed, and then watches until it
// is killed. What the lists left behind is returned to the system before the line, which is more than a program in
// production would do.
package main

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) > 0 && arguments[0] == "follow" {
		return follow(arguments[1:])
	}
	if len(arguments) > 0 && arguments[0] == "use" {
		return use(arguments[1:])
	}
	if len(arguments) < 2 {
		return fmt.Errorf("the arguments are a kubeconfig and at least one group/version/resource")
	}
	config, err := clientcmd.BuildConfigFromFlags("", arguments[0])
	if err != nil {
		return err
	}
	// As many requests as it likes: nothing is measured but memory.
	config.QPS = -1
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := dynamicinformer.NewDynamicSharedInformerFactory(client, 0)
	for _, argument := range arguments[1:] {
		resource, err := resourceOf(argument)
		if err != nil {
			return err
		}
		factory.ForResource(resource).Informer()
	}
	ctx := context.Background()
	factory.Start(ctx.Done())
	for resource, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return fmt.Errorf("%s was not listed", resource)
		}
	}
	debug.FreeOSMemory()
	fmt.Println("listed")
	select {}
}

func resourceOf(argument string) (schema.GroupVersionResource, error) {
	parts := strings.Split(argument, "/")
	if len(parts) != 3 {
		return schema.GroupVersionResource{}, fmt.Errorf("%q is not group/version/resource", argument)
	}
	return schema.GroupVersionResource{Group: parts[0], Version: parts[1], Resource: parts[2]}, nil
}
