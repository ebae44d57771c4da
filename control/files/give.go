package files

import (
	"maps"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/allocate/assign"
	"sluice.dev/sluice/allocate/pools"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
)

// held is a Service of type LoadBalancer, or with addresses in its status, in its manifest's form,
// and the addresses decided for it.
type held struct {
	bad      *object // the newest version, if that is malformed
	id       objects.ObjectID
	document int
	service  *corev1.Service
	given    assign.Given
}

// give has addresses decided, and changes the objects that were read accordingly. Services of files
// that were not read again, and that have other addresses now, are added to the batch.
func (w *Watcher) give(batch *tracker.Batch) {
	names := slices.Sorted(maps.Keys(w.files))
	var all []*corev1.Service
	seen := map[string]bool{}
	for _, name := range names {
		f := w.files[name]
		if f.next != nil {
			f.held = f.next.loadBalancers(f.held)
		}
		for _, h := range f.held {
			if key := pools.KeyOf(h.service); !seen[key] { // of two places the first one is used
				seen[key] = true
				all = append(all, h.service)
			}
		}
	}
	decided := w.Addresses.Decide(all)
	for _, name := range names {
		f := w.files[name]
		for i := range f.held {
			h := &f.held[i]
			now := decided[pools.KeyOf(h.service)]
			same := reflect.DeepEqual(now, h.given)
			h.given = now
			switch service, problems := h.decided(); {
			case f.next != nil && h.bad == nil:
				f.next.replace(h.id, service, problems)
			case !same:
				from := w.place(name)
				from.Document = h.document
				batch.UpsertNoted(from, service, problems)
				if h.bad != nil {
					batch.Malformed(from, h.id, h.bad.field, h.bad.message)
				}
			}
		}
	}
}

// decided returns the Service in the form that is served, and the problems of its addresses.
func (h *held) decided() (*corev1.Service, []objects.FieldProblem) {
	service := h.service
	var problems []objects.FieldProblem
	if len(h.given.Addresses) > 0 {
		service = assign.WithAddresses(service, h.given.Addresses)
	}
	if h.given.Problem != "" {
		problems = append(problems, objects.FieldProblem{Field: "status.loadBalancer", Severity: objects.Warning,
			Message: h.given.Problem})
	}
	return service, problems
}

// loadBalancers returns the Services that are held. One that is malformed now has its last
// good version.
func (out *found) loadBalancers(before []held) (list []held) {
	seen := map[objects.ObjectID]bool{}
	for i := range out.objects {
		o := &out.objects[i]
		if o.id.Kind != objects.KindService || seen[o.id] {
			continue
		}
		seen[o.id] = true
		if o.decoded == nil {
			if i := slices.IndexFunc(before, func(h held) bool { return h.id == o.id }); i >= 0 {
				last := before[i]
				last.bad, last.document = o, o.document
				list = append(list, last)
			}
			continue
		}
		service, ok := o.decoded.(*corev1.Service)
		if !ok || service.Spec.Type != corev1.ServiceTypeLoadBalancer && len(pools.StatusOf(service)) == 0 {
			continue
		}
		service.Namespace = o.id.Namespace
		list = append(list, held{id: o.id, document: o.document, service: service})
	}
	return list
}

// replace sets the served form of an object that was read, unless it is malformed.
func (out *found) replace(id objects.ObjectID, service *corev1.Service, problems []objects.FieldProblem) {
	for i := range out.objects {
		if o := &out.objects[i]; o.id == id {
			if o.decoded != nil {
				o.decoded, o.problems = service, problems
			}
			return // of two with the name the first one is used
		}
	}
}
