package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// use does with a credential what GitOps tools do first: it asks what the cluster serves, lists namespaces, and applies,
// reads and deletes an object. The file is a kubeconfig, or a Secret in JSON as the API server returns it, which is read
// as the tool reads it.
func use(arguments []string) error {
	if len(arguments) != 2 {
		return fmt.Errorf("the arguments are kubeconfig, argocd or flux, and a file")
	}
	text, err := os.ReadFile(arguments[1])
	if err != nil {
		return err
	}
	config, err := configOf(arguments[0], text)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	if err := printServed(client.Discovery()); err != nil {
		return err
	}
	ctx := context.Background()
	namespaces, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, namespace := range namespaces.Items {
		fmt.Println("namespace", namespace.Name)
	}
	return applyAndDelete(ctx, client)
}

func printServed(client discovery.DiscoveryInterface) error {
	version, err := client.ServerVersion()
	if err != nil {
		return err
	}
	fmt.Println("version", version.GitVersion)
	served, err := client.ServerPreferredResources()
	if err != nil {
		return err
	}
	var lines []string
	for _, list := range served {
		for _, resource := range list.APIResources {
			lines = append(lines, fmt.Sprintf("serves %s %s %v", list.GroupVersion, resource.Name, resource.Verbs))
		}
	}
	sort.Strings(lines)
	fmt.Println(strings.Join(lines, "\n"))
	return nil
}

func applyAndDelete(ctx context.Context, client kubernetes.Interface) error {
	maps := client.CoreV1().ConfigMaps("default")
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "synced"}, Data: map[string]string{"a": "1"}}
	made, err := maps.Create(ctx, object, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	made.Data["a"] = "2"
	if _, err := maps.Update(ctx, made, metav1.UpdateOptions{}); err != nil {
		return err
	}
	if _, err := maps.Update(ctx, made, metav1.UpdateOptions{}); err == nil {
		return fmt.Errorf("an update of an old version was taken")
	} else {
		fmt.Println("conflict:", err)
	}
	read, err := maps.Get(ctx, "synced", metav1.GetOptions{})
	if err != nil {
		return err
	}
	fmt.Println("synced", read.Data, read.ManagedFields[0].Manager)
	return maps.Delete(ctx, "synced", metav1.DeleteOptions{})
}

func configOf(tool string, text []byte) (*rest.Config, error) {
	if tool == "kubeconfig" {
		return clientcmd.RESTConfigFromKubeConfig(text)
	}
	var secret corev1.Secret
	if err := json.Unmarshal(text, &secret); err != nil {
		return nil, err
	}
	switch tool {
	case "argocd":
		return ofArgo(&secret)
	case "flux":
		return ofFlux(&secret)
	}
	return nil, fmt.Errorf("%q is neither kubeconfig, argocd nor flux", tool)
}

// argoConfig has the fields of Argo CD's ClusterConfig that its documentation of declarative clusters names.
type argoConfig struct {
	Username        string          `json:"username,omitempty"`
	Password        string          `json:"password,omitempty"`
	BearerToken     string          `json:"bearerToken,omitempty"`
	TLSClientConfig argoTLS         `json:"tlsClientConfig"`
	AWSAuthConfig   json.RawMessage `json:"awsAuthConfig,omitempty"`
	ExecProvider    json.RawMessage `json:"execProviderConfig,omitempty"`
	ProxyURL        string          `json:"proxyUrl,omitempty"`
}

type argoTLS struct {
	Insecure   bool   `json:"insecure"`
	ServerName string `json:"serverName,omitempty"`
	CertData   []byte `json:"certData,omitempty"`
	KeyData    []byte `json:"keyData,omitempty"`
	CAData     []byte `json:"caData,omitempty"`
}

// ofArgo reads a Secret as Argo CD does: found by its label, the server without a slash at its end, and the config as
// JSON whose binary fields are base64.
func ofArgo(secret *corev1.Secret) (*rest.Config, error) {
	if secret.Labels["argocd.argoproj.io/secret-type"] != "cluster" {
		return nil, fmt.Errorf("without its label Argo CD does not see the Secret")
	}
	var config argoConfig
	decoder := json.NewDecoder(strings.NewReader(string(secret.Data["config"])))
	// Argo CD ignores what it does not know; here it would be a mistake.
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&config); err != nil {
		return nil, err
	}
	if len(secret.Data["name"]) == 0 {
		return nil, fmt.Errorf("the cluster has no name")
	}
	if config.AWSAuthConfig != nil || config.ExecProvider != nil || config.ProxyURL != "" {
		return nil, fmt.Errorf("the config needs a program or a proxy")
	}
	tls := config.TLSClientConfig
	return &rest.Config{
		Host:        strings.TrimRight(string(secret.Data["server"]), "/"),
		Username:    config.Username,
		Password:    config.Password,
		BearerToken: config.BearerToken,
		TLSClientConfig: rest.TLSClientConfig{
			Insecure: tls.Insecure, ServerName: tls.ServerName,
			CertData: tls.CertData, KeyData: tls.KeyData, CAData: tls.CAData,
		},
	}, nil
}

// ofFlux reads a Secret as Flux's controllers do: the key value, else value.yaml, and of the kubeconfig neither exec
// programs nor insecure TLS, which they do not take unless told to.
func ofFlux(secret *corev1.Secret) (*rest.Config, error) {
	text, found := secret.Data["value"]
	if !found {
		if text, found = secret.Data["value.yaml"]; !found {
			return nil, fmt.Errorf("the Secret has neither value nor value.yaml")
		}
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(text)
	if err != nil {
		return nil, err
	}
	config.ExecProvider, config.Insecure = nil, false
	return config, nil
}
