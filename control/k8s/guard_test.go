package k8s

import (
	"log/slog"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"

	"sluice.dev/sluice/control/k8s/k8stest"
)

// brittle decodes nothing but the frames of a watch.
type brittle struct{ runtime.NegotiatedSerializer }

func (b brittle) DecoderToVersion(runtime.Decoder, runtime.GroupVersioner) runtime.Decoder {
	return brittleDecoder{}
}

type brittleDecoder struct{ runtime.Decoder }

func (brittleDecoder) Decode(
	[]byte, *schema.GroupVersionKind, runtime.Object,
) (runtime.Object, *schema.GroupVersionKind, error) {
	panic("brittle")
}

// TestDecodingThatPanics is an error of the watch; without the guard it ends this process.
func TestDecodingThatPanics(t *testing.T) {
	s := k8stest.Start(t)
	s.Set(testService())
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	codecs := brittle{serializer.NewCodecFactory(scheme).WithoutConversion()}
	client, err := newClient(s.Config(), &http.Client{}, corev1.SchemeGroupVersion,
		guarded{codecs, slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	w, err := client.Get().Resource("services").VersionedParams(&metav1.ListOptions{Watch: true},
		metav1.ParameterCodec).Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	select {
	case e := <-w.ResultChan():
		if e.Type != watch.Error {
			t.Errorf("the watch says %v, want an error", e)
		}
	case <-time.After(10 * time.Second):
		t.Error("the watch says nothing")
	}
	if c, err := newClients(s.Config(), slog.New(slog.DiscardHandler)); err != nil {
		t.Error(err)
	} else if err := c.core.Get().Resource("services").Namespace("shop").Name("a").Do(t.Context()).
		Into(&corev1.Service{}); err != nil {
		t.Errorf("a guarded client reads nothing: %v", err)
	}
}

// TestRetriesAreFrequent: an API server that is back after a long outage is asked within 10 s, and
// one that refuses requests is asked less and less often.
func TestRetriesAreFrequent(t *testing.T) {
	delay := retryBackoff().DelayFunc()
	if first := delay(); first < 800*time.Millisecond || first > 1600*time.Millisecond {
		t.Errorf("the first request is repeated after %v", first)
	}
	for n := range 100 {
		if d := delay(); d > 10*time.Second || n > 3 && d < 5*time.Second {
			t.Errorf("the next request after %d failures follows after %v", n+2, d)
		}
	}
}
