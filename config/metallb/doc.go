// Package metallb converts a MetalLB installation: it reports which of its objects the announcer
// and the controller read unchanged, converts them into objects of sluice.dev, names unsupported
// fields with a reason and an alternative, and computes the address that each Service will have.
//
//	objects ── kinds.Reader ──▶ what is read of each, as it is
//	   │
//	   └─ without namespace and gaps ──▶ objects of sluice.dev ── kinds.Reader ──▶ manifest
//	                                            │
//	   Services ── pools.Allocator ◀────────────┘ ──▶ addresses
//
// It has no rules of its own: the reader, the unsupported fields and the allocator are the
// announcer's and the controller's. It reads no file and contacts no API server; the caller gives
// it bytes.
package metallb

import "sluice.dev/sluice/announce/kinds"

// How much of an unchanged object of metallb.io is read.
const (
	All     = "all"     // all of it
	Part    = "part"    // except for the fields in Notes
	Nothing = "nothing" // Notes have the reason
)

// Object is one object of MetalLB.
type Object struct {
	Object string `json:"object"` // kind, namespace/name
	// AsItIs is All, Part or Nothing: how much the announcer and the controller read of it,
	// unchanged.
	AsItIs string `json:"asItIs"`
	// Becomes is the object of sluice.dev in the manifest; empty if there is none.
	Becomes string `json:"becomes,omitempty"`
	Notes   []Note `json:"notes,omitempty"`
}

// Note is a remark about an object.
type Note struct {
	Field string `json:"field,omitempty"`
	Text  string `json:"text"`
	Do    string `json:"do,omitempty"`
}

// Service is one Service of type LoadBalancer.
type Service struct {
	Service string `json:"service"` // namespace/name
	Has     string `json:"has"`     // addresses of its status
	Gets    string `json:"gets"`    // addresses that the controller will leave or write in the status
	Pool    string `json:"pool,omitempty"`
	Notes   []Note `json:"notes,omitempty"`
}

// Result is a converted installation.
type Result struct {
	Objects  []Object  `json:"objects"`
	Services []Service `json:"services"`
	// Warnings name missing input, without which the answer may be wrong.
	Warnings []string `json:"warnings"`
	// Skipped counts the objects that are not part of MetalLB's configuration, by kind.
	Skipped map[string]int `json:"skipped,omitempty"`
	// YAML is the manifest of objects of sluice.dev.
	YAML []byte `json:"-"`
}

// Options are inputs that the objects do not contain.
type Options struct {
	// Namespace is the announcer's namespace, in which it reads passwords.
	Namespace string
	// MetalLB is MetalLB's namespace: only objects in it, or without a namespace, are read.
	MetalLB string
	// Class is the class that the controller serves (controller.class of the chart).
	Class string
}

// Input is a file of YAML documents. Name is for messages.
type Input struct {
	Name string
	Data []byte
}

// statusKinds are written by MetalLB and configure nothing.
var statusKinds = []string{"ConfigurationState", "ServiceBGPStatus", "ServiceL2Status"}

// Convert reads objects in the form of `kubectl get -o yaml` or of manifests. Its error names the
// document that is not an object.
func Convert(inputs []Input, o Options) (*Result, error) {
	c := &conversion{options: o, result: &Result{Objects: []Object{}, Services: []Service{}, Warnings: []string{},
		Skipped: map[string]int{}}}
	for _, in := range inputs {
		if err := c.decode(in); err != nil {
			return nil, err
		}
	}
	asItIs := c.asItIs()
	c.convert(asItIs)
	c.services()
	c.result.YAML = c.manifest()
	return c.result, nil
}

// problemsOf returns a reader's problems by object.
func problemsOf(list []kinds.Problem) map[string][]kinds.Problem {
	by := map[string][]kinds.Problem{}
	for _, p := range list {
		p.About.UID = "" // a List may have it, and a file may not
		by[key(p.About)] = append(by[key(p.About)], p)
	}
	return by
}

func key(r kinds.Ref) string { return r.APIVersion + " " + r.String() }
