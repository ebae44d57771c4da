package k8s

import (
	"fmt"
	"log/slog"
	"runtime/debug"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// guarded turns a panic in the decoding of an object into an error. client-go decodes a watch on a
// goroutine of its own and lets a panic there end the process (k8s.io/apimachinery pkg/watch,
// StreamWatcher.receive; pkg/util/runtime, ReallyCrash), where this package cannot recover. An
// error ends the watch, which is started again; objects that were read before are still served.
type guarded struct {
	runtime.NegotiatedSerializer
	log *slog.Logger
}

// DecoderToVersion implements runtime.NegotiatedSerializer.
func (g guarded) DecoderToVersion(d runtime.Decoder, gv runtime.GroupVersioner) runtime.Decoder {
	return guardedDecoder{g.NegotiatedSerializer.DecoderToVersion(d, gv), g.log}
}

type guardedDecoder struct {
	runtime.Decoder
	log *slog.Logger
}

// Decode implements runtime.Decoder.
func (d guardedDecoder) Decode(
	data []byte, defaults *schema.GroupVersionKind, into runtime.Object,
) (o runtime.Object, kind *schema.GroupVersionKind, err error) {
	defer func() {
		if p := recover(); p != nil {
			o, kind, err = nil, nil, fmt.Errorf("decoding an object failed: %v, at %s", p, firstFrame(debug.Stack()))
			d.log.Error("an object from the API server cannot be decoded; its last version stays in use", "error", err,
				"bytes", len(data))
		}
	}()
	return d.Decoder.Decode(data, defaults, into)
}
