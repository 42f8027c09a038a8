// Dns answers for the Services of a cluster, over UDP: their cluster IPs, the pods behind headless ones, and pods by
// their host names. Everything else does not exist.
package main

import (
	"flag"
	"log"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	suffix = ".svc.cluster.local."
	// Seconds for which an answer may be kept.
	ttl = 5
	// What a resolver without extensions accepts.
	maxSize = 512
)

type names struct {
	services corelisters.ServiceLister
	slices   discoverylisters.EndpointSliceLister
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "file of the cluster's administrator")
	listen := flag.String("listen", "127.0.0.1:53", "address to answer at")
	flag.Parse()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		log.Fatal(err)
	}
	factory := informers.NewSharedInformerFactory(kubernetes.NewForConfigOrDie(config), 0)
	known := names{
		services: factory.Core().V1().Services().Lister(),
		slices:   factory.Discovery().V1().EndpointSlices().Lister(),
	}
	factory.Start(nil)
	factory.WaitForCacheSync(nil)
	socket, err := net.ListenPacket("udp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("answering at %s", *listen)
	buffer := make([]byte, maxSize)
	for {
		size, from, err := socket.ReadFrom(buffer)
		if err != nil {
			log.Fatal(err)
		}
		answer, err := known.answer(buffer[:size])
		if err != nil {
			log.Printf("%s: %v", from, err)
			continue
		}
		if _, err := socket.WriteTo(answer, from); err != nil {
			log.Printf("%s: %v", from, err)
		}
	}
}

func (n names) answer(request []byte) ([]byte, error) {
	var parser dnsmessage.Parser
	header, err := parser.Start(request)
	if err != nil {
		return nil, err
	}
	question, err := parser.Question()
	if err != nil {
		return nil, err
	}
	addresses, exists := n.look(strings.ToLower(question.Name.String()))
	header.Response, header.Authoritative, header.RecursionAvailable = true, true, true
	if !exists {
		header.RCode = dnsmessage.RCodeNameError
	}
	builder := dnsmessage.NewBuilder(make([]byte, 0, maxSize), header)
	builder.EnableCompression()
	if err := builder.StartQuestions(); err != nil {
		return nil, err
	}
	if err := builder.Question(question); err != nil {
		return nil, err
	}
	if err := builder.StartAnswers(); err != nil {
		return nil, err
	}
	for _, address := range addresses {
		if question.Type != dnsmessage.TypeA || !address.Is4() {
			continue
		}
		about := dnsmessage.ResourceHeader{Name: question.Name, Class: dnsmessage.ClassINET, TTL: ttl}
		if err := builder.AResource(about, dnsmessage.AResource{A: address.As4()}); err != nil {
			return nil, err
		}
	}
	return builder.Finish()
}

// look returns the addresses of SERVICE.NAMESPACE.svc.cluster.local or HOST.SERVICE.NAMESPACE.svc.cluster.local, and
// whether there is such a name.
func (n names) look(name string) ([]netip.Addr, bool) {
	rest, ok := strings.CutSuffix(name, suffix)
	if !ok {
		return nil, false
	}
	parts := strings.Split(rest, ".")
	host := ""
	if len(parts) == 3 {
		host, parts = parts[0], parts[1:]
	}
	if len(parts) != 2 {
		return nil, false
	}
	service, err := n.services.Services(parts[1]).Get(parts[0])
	if err != nil {
		return nil, false
	}
	if host == "" && service.Spec.ClusterIP != corev1.ClusterIPNone {
		address, err := netip.ParseAddr(service.Spec.ClusterIP)
		return []netip.Addr{address}, err == nil
	}
	addresses := n.pods(service, host)
	return addresses, host == "" || len(addresses) > 0
}

func (n names) pods(service *corev1.Service, host string) []netip.Addr {
	of := labels.SelectorFromSet(labels.Set{discovery.LabelServiceName: service.Name})
	slices, err := n.slices.EndpointSlices(service.Namespace).List(of)
	if err != nil {
		return nil
	}
	var found []netip.Addr
	for _, slice := range slices {
		for _, endpoint := range slice.Endpoints {
			ready := endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready
			if !ready && !service.Spec.PublishNotReadyAddresses {
				continue
			}
			if host != "" && (endpoint.Hostname == nil || *endpoint.Hostname != host) {
				continue
			}
			for _, text := range endpoint.Addresses {
				if address, err := netip.ParseAddr(text); err == nil {
					found = append(found, address)
				}
			}
		}
	}
	return found
}
