package allocate

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"sluice.dev/sluice/allocate/pools"
)

// poolSet reads the objects of both kinds of pools. A pool that cannot be read any more keeps its
// previous specification, so that a mistake takes no address away. If this process never read it,
// its specification is unknown: then Services keep their addresses (pools.Remains).
type poolSet struct {
	last     map[types.UID]*pools.Pool // the last readable version of each
	reported map[types.UID]string      // problems reported of each, so that each is reported once
	report   func(about corev1.ObjectReference, reason, note string)
	// nodesIn, unless nil, returns a message about addresses of Nodes in a pool, or "".
	nodesIn func(p *pools.Pool) string
}

// Reasons of Events about pools.
const (
	poolInvalid   = string(pools.PoolInvalid)
	poolNameTaken = "PoolNameTaken" // another pool has the name and is used
	poolsOverlap  = "PoolsOverlap"
	fieldNotDone  = "FieldNotDone"
)

// read returns the pools of all objects and reports problems. AddressPools come before MetalLB's:
// if two have one name, the first that can be read is used. unreadable are pools that this process
// could never read.
func (s *poolSet) read(objects []*unstructured.Unstructured) (list, unreadable []*pools.Pool) {
	objects = slices.Clone(objects)
	slices.SortFunc(objects, func(a, b *unstructured.Unstructured) int {
		return cmp.Or(-strings.Compare(a.GetAPIVersion(), b.GetAPIVersion()), // sluice.dev, metallb.io
			strings.Compare(a.GetNamespace(), b.GetNamespace()), strings.Compare(a.GetName(), b.GetName()))
	})
	last, reported := map[types.UID]*pools.Pool{}, map[types.UID]string{}
	for _, o := range objects {
		var problems []string
		note := func(reason, format string, args ...any) {
			problems = append(problems, reason+"\x00"+fmt.Sprintf(format, args...))
		}
		p, unknown, err := readPool(o)
		if err != nil {
			state, remains := "its previous version stays in force", p
			if p = s.last[o.GetUID()]; p == nil {
				state = "it assigns no addresses until it can be read; Services keep their addresses that are in no " +
					"other pool"
				unreadable = append(unreadable, remains)
			}
			note(poolInvalid, "%v; %s", err, state)
		}
		if len(unknown) > 0 {
			note(fieldNotDone, "Sluice does not read %s", strings.Join(unknown, ", "))
		}
		if p != nil {
			last[o.GetUID()] = p
			list = s.add(list, p, note)
			if text := s.nodes(p); text != "" {
				note(nodeAddress, "%s", text)
			}
		}
		reported[o.GetUID()] = strings.Join(problems, "\x01")
		if reported[o.GetUID()] != s.reported[o.GetUID()] {
			s.reportAll(o, problems)
		}
	}
	s.last, s.reported = last, reported
	return list, unreadable
}

func (s *poolSet) nodes(p *pools.Pool) string {
	if s.nodesIn == nil {
		return ""
	}
	return s.nodesIn(p)
}

// add appends a pool if no other one has its name.
func (s *poolSet) add(list []*pools.Pool, p *pools.Pool, note func(reason, format string, args ...any)) []*pools.Pool {
	for _, q := range list {
		if q.Name == p.Name {
			note(poolNameTaken, "another pool has the name %s, and this one is not used: rename one", p.Name)
			return list
		}
	}
	for _, text := range pools.OverlapsWith(p, list) {
		note(poolsOverlap, "%s", text)
	}
	return append(list, p)
}

func (s *poolSet) reportAll(o *unstructured.Unstructured, problems []string) {
	for _, p := range problems {
		reason, text, _ := strings.Cut(p, "\x00")
		s.report(corev1.ObjectReference{APIVersion: o.GetAPIVersion(), Kind: o.GetKind(), Namespace: o.GetNamespace(),
			Name: o.GetName(), UID: o.GetUID()}, reason, text)
	}
}

// readPool parses a pool and returns the fields of its specification that Sluice does not read.
// With an error the pool has the readable part.
func readPool(o *unstructured.Unstructured) (p *pools.Pool, unknown []string, err error) {
	raw, there := o.Object["spec"].(map[string]any)
	if !there {
		return pools.Remains(o.GetName(), pools.Spec{}), nil, errors.New("spec is missing")
	}
	unknown = pools.Unread(raw)
	text, err := json.Marshal(raw)
	var spec pools.Spec
	if err == nil {
		err = json.Unmarshal(text, &spec)
	}
	if err != nil {
		return pools.Remains(o.GetName(), spec), unknown, fmt.Errorf("spec: %w", err)
	}
	if p, err = pools.New(o.GetName(), spec); err != nil {
		p = pools.Remains(o.GetName(), spec)
	}
	return p, unknown, err
}
