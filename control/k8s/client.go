package k8s

import (
	"fmt"
	"log/slog"
	"net/http"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

const (
	// protobuf is the encoding of objects that are read: decoding takes a fraction of JSON's time
	// and garbage.
	protobuf  = runtime.ContentTypeProtobuf
	userAgent = "sluice"
)

// clients are the API groups over one set of connections.
type clients struct{ core, discovery, events, apps rest.Interface }

func newClients(base *rest.Config, log *slog.Logger) (c clients, err error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, discoveryv1.AddToScheme, eventsv1.AddToScheme, appsv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return c, fmt.Errorf("register API types: %w", err)
		}
	}
	codecs := serializer.NewCodecFactory(scheme).WithoutConversion()
	base = rest.CopyConfig(base)
	base.UserAgent = userAgent
	// Five lists and five watches are no load; Events have their own limit.
	base.QPS = -1
	base.WarningHandler = rest.NoWarnings{} // they are for authors of objects
	transport, err := rest.HTTPClientFor(base)
	if err != nil {
		return c, fmt.Errorf("API server %s: %w", base.Host, err)
	}
	for _, g := range []struct {
		to *rest.Interface
		gv schema.GroupVersion
	}{{&c.core, corev1.SchemeGroupVersion}, {&c.discovery, discoveryv1.SchemeGroupVersion},
		{&c.events, eventsv1.SchemeGroupVersion}, {&c.apps, appsv1.SchemeGroupVersion}} {
		if *g.to, err = newClient(base, transport, g.gv, guarded{codecs, log}); err != nil {
			return c, fmt.Errorf("API server %s: %w", base.Host, err)
		}
	}
	return c, nil
}

func newClient(
	base *rest.Config, transport *http.Client, gv schema.GroupVersion, codecs guarded,
) (rest.Interface, error) {
	c := rest.CopyConfig(base)
	c.APIPath = "/apis"
	if gv.Group == "" {
		c.APIPath = "/api"
	}
	c.GroupVersion, c.NegotiatedSerializer = &gv, codecs
	c.ContentType, c.AcceptContentTypes = runtime.ContentTypeJSON, protobuf+","+runtime.ContentTypeJSON
	return rest.RESTClientForConfigAndClient(c, transport)
}
