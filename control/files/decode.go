package files

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
)

// found has the objects of a file.
type found struct {
	objects []object
	skipped []object // of other kinds
}

// object is one object of a file: decoded, or malformed in a field.
type object struct {
	document       int // from 1
	id             objects.ObjectID
	decoded        runtime.Object
	field, message string
	problems       []objects.FieldProblem // further ones, of a Service
}

// documentError is why a whole file cannot be used.
type documentError struct {
	document int
	err      error
}

func (e *documentError) Error() string { return fmt.Sprintf("document %d: %v", e.document, e.err) }
func (e *documentError) Unwrap() error { return e.err }

// header has the fields that identify an object.
type header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
	Items []json.RawMessage `json:"items"`
}

// Decode adds all objects of a manifest to a batch, as a Watcher does with a new file, and returns
// their IDs. It returns an error if the manifest as a whole cannot be used; the batch is unchanged
// then.
func Decode(from objects.Source, data []byte, batch *tracker.Batch) ([]objects.ObjectID, error) {
	found, err := decode(data)
	if err != nil {
		return nil, err
	}
	return slices.SortedFunc(maps.Keys(found.put(from, batch)), objects.ObjectID.Compare), nil
}

// put adds everything to a batch, and returns the IDs of the objects.
func (out *found) put(from objects.Source, batch *tracker.Batch) map[objects.ObjectID]bool {
	now := make(map[objects.ObjectID]bool, len(out.objects))
	var problems []objects.Problem
	for i := range out.objects {
		o := &out.objects[i]
		at := from
		at.Document = o.document
		switch {
		case now[o.id]:
			problems = append(problems, objects.Problem{Source: at, Object: o.id, Severity: objects.Refused,
				Message: "is in this file twice, and the first one is used"})
		case o.decoded == nil:
			batch.Malformed(at, o.id, o.field, o.message)
		default:
			batch.UpsertNoted(at, o.decoded, o.problems)
		}
		now[o.id] = true
	}
	for _, s := range out.skipped {
		at := from
		at.Document = s.document
		problems = append(problems, objects.Problem{Source: at, Object: s.id, Severity: objects.Warning,
			Message: "is of no kind that is read here, and is skipped"})
	}
	batch.Report(from, problems)
	return now
}

// decode decodes all documents of a file. It returns an error if a document cannot be parsed or
// does not identify its object: then it is unknown which objects were removed.
func decode(data []byte) (*found, error) {
	out := &found{}
	number := 1
	for _, document := range split(data) {
		raw, err := toJSON(document)
		if raw == nil && err == nil {
			continue
		}
		if err == nil {
			err = out.add(raw, number, false)
		}
		if err != nil {
			return nil, &documentError{number, err}
		}
		number++
	}
	return out, nil
}

// split cuts a YAML stream at its document markers: "---" at the start of a line
// (YAML 1.2.2 section 9.1.2).
func split(data []byte) (documents [][]byte) {
	start := 0
	for at := 0; at < len(data); {
		end := at + bytes.IndexByte(data[at:], '\n') + 1
		if end == at {
			end = len(data)
		}
		line := data[at:end]
		if at > 0 && bytes.HasPrefix(line, []byte("---")) && (len(line) == 3 ||
			strings.IndexByte(" \t\r\n", line[3]) >= 0) {
			documents = append(documents, data[start:at])
			start = at
		}
		at = end
	}
	return append(documents, data[start:])
}

// toJSON converts a document; JSON stays as it is. It returns nil for an empty document.
func toJSON(document []byte) ([]byte, error) {
	if trimmed := bytes.TrimSpace(document); len(trimmed) > 0 && trimmed[0] == '{' && json.Valid(trimmed) {
		return trimmed, nil
	}
	raw, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		return nil, err
	}
	if bytes.Equal(raw, []byte("null")) {
		return nil, nil
	}
	return raw, nil
}

// add decodes one object, or the objects of a List.
func (out *found) add(raw []byte, document int, inList bool) error {
	var h header
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &h); err != nil {
		return shapeError(err)
	}
	if h.APIVersion == "" || h.Kind == "" {
		return errors.New("apiVersion and kind are missing: this is not a Kubernetes object")
	}
	if h.APIVersion == "v1" && h.Kind == "List" && !inList {
		for i, item := range h.Items {
			if err := out.add(item, document, true); err != nil {
				return fmt.Errorf("items[%d]: %w", i, err)
			}
		}
		return nil
	}
	o := object{document: document, id: identify(&h)}
	if o.decoded = newObject(&h); o.decoded == nil {
		out.skipped = append(out.skipped, o)
		return nil
	}
	if h.Metadata.Name == "" {
		return fmt.Errorf("%s: metadata.name is missing", h.Kind)
	}
	if o.field, o.message = decodeStrict(raw, o.decoded); o.message != "" {
		o.decoded = nil
	}
	out.objects = append(out.objects, o)
	return nil
}

// shapeError describes a wrong type without the names of Go types.
func shapeError(err error) error {
	var wrong *json.UnmarshalTypeError
	switch {
	case !errors.As(err, &wrong):
		return err
	case wrong.Field == "":
		return fmt.Errorf("is a %s, not an object", wrong.Value)
	}
	return fmt.Errorf("%s: is a %s", wrong.Field, wrong.Value)
}

func identify(h *header) objects.ObjectID {
	id := objects.ObjectID{Kind: h.Kind, Namespace: h.Metadata.Namespace, Name: h.Metadata.Name}
	switch {
	case h.Kind == objects.KindNode:
		id.Namespace = ""
	case id.Namespace == "":
		id.Namespace = corev1.NamespaceDefault
	}
	return id
}

// newObject returns an object of the header's kind; nil if that kind is not read.
func newObject(h *header) runtime.Object {
	switch {
	case h.APIVersion == "v1" && h.Kind == objects.KindService:
		return &corev1.Service{}
	case h.APIVersion == "v1" && h.Kind == objects.KindNode:
		return &corev1.Node{}
	case h.APIVersion == "discovery.k8s.io/v1" && h.Kind == objects.KindEndpointSlice:
		return &discoveryv1.EndpointSlice{}
	}
	return nil
}

// decodeStrict returns which field is wrong, and why; the message is empty on success.
func decodeStrict(raw []byte, into runtime.Object) (field, message string) {
	strict, err := kjson.UnmarshalStrict(raw, into)
	var wrongType *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrongType):
		return wrongType.Field, fmt.Sprintf("is a %s where a %s belongs", wrongType.Value, wrongType.Type)
	case err != nil:
		return "", err.Error()
	case len(strict) == 0:
		return "", ""
	}
	var at kjson.FieldError
	if errors.As(strict[0], &at) {
		field = at.FieldPath()
	}
	message = strings.TrimSuffix(strict[0].Error(), fmt.Sprintf(" %q", field))
	if more := len(strict) - 1; more > 0 {
		message += fmt.Sprintf(" (and %d more such problems)", more)
	}
	return field, message
}
