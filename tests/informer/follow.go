package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

// storeInterval is the time between two looks at what is to be written.
const storeInterval = 50 * time.Millisecond

// follow keeps the names and resource versions that an informer knows in a file, until it is killed. Standard output
// has a line for each request that ended: a list or a watch, how long it took, and how its body ended.
func follow(arguments []string) error {
	if len(arguments) != 4 {
		return fmt.Errorf("the arguments are a kubeconfig, a file, a namespace and group/version/resource")
	}
	config, err := clientcmd.BuildConfigFromFlags("", arguments[0])
	if err != nil {
		return err
	}
	config.Wrap(func(inner http.RoundTripper) http.RoundTripper { return &recorder{inner: inner} })
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	resource, err := resourceOf(arguments[3])
	if err != nil {
		return err
	}
	factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(client, 0, arguments[2], nil)
	informer := factory.ForResource(resource).Informer()
	var changed atomic.Bool
	changes := func(any) { changed.Store(true) }
	handler := cache.ResourceEventHandlerFuncs{AddFunc: changes, UpdateFunc: func(_, _ any) { changed.Store(true) }, DeleteFunc: changes}
	if _, err := informer.AddEventHandler(handler); err != nil {
		return err
	}
	factory.Start(make(chan struct{}))
	for range time.Tick(storeInterval) {
		if informer.HasSynced() && changed.Swap(false) {
			if err := write(arguments[1], informer.GetStore().List()); err != nil {
				return err
			}
		}
	}
	return nil
}

func write(file string, objects []any) error {
	versions := map[string]string{}
	for _, object := range objects {
		accessor, err := meta.Accessor(object)
		if err != nil {
			return err
		}
		versions[accessor.GetName()] = accessor.GetResourceVersion()
	}
	text, err := json.Marshal(versions)
	if err != nil {
		return err
	}
	if err := os.WriteFile(file+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// recorder says how requests ended.
type recorder struct {
	inner http.RoundTripper
}

func (r *recorder) RoundTrip(request *http.Request) (*http.Response, error) {
	query := request.URL.Query()
	entry := ended{IsWatch: query.Get("watch") == "true" || query.Get("watch") == "1"}
	entry.Asked, _ = strconv.Atoi(query.Get("timeoutSeconds"))
	began := time.Now()
	response, err := r.inner.RoundTrip(request)
	if err != nil {
		entry.How = "no answer: " + err.Error()
		entry.print(began)
		return response, err
	}
	entry.Code = response.StatusCode
	response.Body = &body{inner: response.Body, entry: entry, began: began}
	return response, nil
}

// ended is a line about a request.
type ended struct {
	IsWatch bool    `json:"isWatch"`
	Code    int     `json:"code"`
	Asked   int     `json:"asked"`
	Seconds float64 `json:"seconds"`
	// How is "end" for a body that ended as if it were whole, "closed" for one that this program did not want to
	// read to its end, or the error.
	How string `json:"how"`
	// IsLine is whether the last byte ended a line.
	IsLine bool `json:"isLine"`
}

func (e ended) print(began time.Time) {
	e.Seconds = time.Since(began).Seconds()
	line, _ := json.Marshal(e)
	fmt.Println(string(line))
}

type body struct {
	inner io.ReadCloser
	entry ended
	began time.Time
	once  sync.Once
	last  byte
}

func (b *body) Read(into []byte) (int, error) {
	count, err := b.inner.Read(into)
	if count > 0 {
		b.last = into[count-1]
	}
	if err == io.EOF {
		b.end("end")
	} else if err != nil {
		b.end(err.Error())
	}
	return count, err
}

func (b *body) Close() error {
	b.end("closed")
	return b.inner.Close()
}

func (b *body) end(how string) {
	b.once.Do(func() {
		b.entry.How = how
		b.entry.IsLine = b.last == '\n'
		b.entry.print(b.began)
	})
}
