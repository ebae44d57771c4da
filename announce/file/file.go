// Package file reads the objects of an announcer from one file, for a machine without Kubernetes.
// The file has YAML documents of the kinds AddressPool, BGPPeer, BGPAdvertisement, BFDProfile,
// Community and L2Advertisement, as for an API server, and at most one of kind Node (v1):
// nodeSelectors match its labels, and its exclude label and spec.unschedulable take effect.
package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	sigsyaml "sigs.k8s.io/yaml"

	"sluice.dev/sluice/announce"
	"sluice.dev/sluice/announce/kinds"
	"sluice.dev/sluice/internal/heartbeat"
	"sluice.dev/sluice/internal/trusted"
)

// kindsRead are the kinds that a file may contain, besides Node.
var kindsRead = []string{"AddressPool", "BGPPeer", "BGPAdvertisement", "BFDProfile", "Community",
	"L2Advertisement"}

// lookEvery is the interval at which the file is read.
const lookEvery = time.Second

// Source is a file. It implements announce.Source.
type Source struct {
	path string
	log  *slog.Logger
	beat *heartbeat.Beat

	mu      sync.Mutex // guards the fields below
	kinds   []*unstructured.Unstructured
	node    announce.Node
	text    []byte // the content that kinds and node come from
	refused string // why the current content is not used
}

// New reads the file for a node. Mistakes in it are an error. beats, unless nil, gets the heartbeat
// of Run.
func New(path, node string, log *slog.Logger, beats *heartbeat.Set) (*Source, error) {
	s := &Source{path: path, log: log, beat: beats.Add("reader of "+path, heartbeat.FileBounds)}
	s.node.Name = node
	text, err := trusted.Read(path)
	if err != nil {
		return nil, err
	}
	list, err := Decode(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	s.take(text, list)
	return s, nil
}

// take puts parsed objects into force.
func (s *Source) take(text []byte, list []*unstructured.Unstructured) {
	s.text, s.refused, s.kinds, s.node = text, "", nil, announce.Node{Name: s.node.Name}
	for _, o := range list {
		if o.GetKind() != "Node" {
			s.kinds = append(s.kinds, o)
			continue
		}
		s.node.Labels = o.GetLabels()
		s.node.Cordoned, _, _ = unstructured.NestedBool(o.Object, "spec", "unschedulable")
	}
}

// Decode parses the documents of a file.
func Decode(text []byte) (list []*unstructured.Unstructured, err error) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	seen := map[string]bool{}
	for n := 1; ; n++ {
		var document yaml.Node
		if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
			return list, nil
		} else if err != nil {
			return nil, err
		}
		one, err := yaml.Marshal(&document)
		if err != nil {
			return nil, err
		}
		o := &unstructured.Unstructured{}
		if err := sigsyaml.Unmarshal(one, &o.Object); err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
		if len(o.Object) == 0 {
			continue
		}
		node := o.GetAPIVersion() == "v1" && o.GetKind() == "Node"
		if !node && (o.GetAPIVersion() != "sluice.dev/v1alpha1" || !slices.Contains(kindsRead, o.GetKind())) {
			return nil, fmt.Errorf("document %d: %s %q is not supported; the kinds of sluice.dev/v1alpha1 are: %s", n,
				o.GetAPIVersion(), o.GetKind(), strings.Join(kindsRead, ", "))
		}
		name := o.GetKind() + " " + o.GetName()
		if node {
			name = "Node" // at most one
			if o.GetName() == "" {
				o.SetName(name)
			}
		}
		if o.GetName() == "" || seen[name] {
			return nil, fmt.Errorf("document %d: %s needs a unique metadata.name", n, name)
		}
		seen[name] = true
		list = append(list, o)
	}
}

// Objects implements announce.Source.
func (s *Source) Objects() (*announce.Objects, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := &announce.Objects{Kinds: s.kinds, Node: s.node}
	if s.refused != "" {
		o.Problems = append(o.Problems, kinds.Problem{About: kinds.OfNode(s.node.Name), Reason: kinds.Unread,
			Note: fmt.Sprintf("the file is rejected, its previous version stays in force: %s", s.refused)})
	}
	return o, ""
}

// Run implements announce.Source: it reads the file again when it has changed. A file with mistakes
// changes nothing.
func (s *Source) Run(ctx context.Context, changed func()) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	defer s.beat.Rest()
	for {
		s.beat.Beat()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if s.look() {
			changed()
		}
	}
}

// look reports whether Objects has another result.
func (s *Source) look() (changed bool) {
	text, err := trusted.Read(s.path)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && bytes.Equal(text, s.text) {
		changed = s.refused != ""
		s.refused = ""
		return changed
	}
	var list []*unstructured.Unstructured
	if err == nil {
		list, err = Decode(text)
	}
	if err != nil {
		if changed = s.refused != err.Error(); changed {
			s.refused = err.Error()
			s.log.Error("the file is rejected, its previous version stays in force", "file", s.path, "error", err)
		}
		return changed
	}
	s.log.Info("the file has changed", "file", s.path, "objects", len(list))
	s.take(text, list)
	return true
}
