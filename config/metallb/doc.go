// Package metallb says what becomes of a MetalLB installation: which of its objects the announcer
// and the controller read as they are, what they are as objects of sluice.dev, which fields are not
// done, why and what to do instead, and which address each Service will have.
//
//	objects ── kinds.Reader ──▶ what is read of each, as it is
//	   │
//	   └─ without namespace and gaps ──▶ objects of sluice.dev ── kinds.Reader ──▶ manifest
//	                                            │
//	   Services ── pools.Allocator ◀────────────┘ ──▶ addresses
//
// It has no rules of its own: reader, fields that are not done and allocator are those of the
// announcer and the controller. It reads no file and asks no API server; the caller gives it bytes.
package metallb

import "sluice.dev/sluice/announce/kinds"

// How an object of metallb.io is read as it is.
const (
	All     = "all"     // all that it says
	Part    = "part"    // without the fields that Notes name
	Nothing = "nothing" // Notes say why
)

// Object is one object of MetalLB.
type Object struct {
	Object string `json:"object"` // kind, namespace/name
	// AsItIs is All, Part or Nothing: what announcer and controller read of it, while it is there.
	AsItIs string `json:"asItIs"`
	// Becomes is the object of sluice.dev in the manifest; empty if there is none.
	Becomes string `json:"becomes,omitempty"`
	Notes   []Note `json:"notes,omitempty"`
}

// Note is something to know about an object.
type Note struct {
	Field string `json:"field,omitempty"`
	Text  string `json:"text"`
	Do    string `json:"do,omitempty"`
}

// Service is one Service of type LoadBalancer.
type Service struct {
	Service string `json:"service"` // namespace/name
	Has     string `json:"has"`     // addresses of its status
	Gets    string `json:"gets"`    // addresses that the controller will leave or write there
	Pool    string `json:"pool,omitempty"`
	Notes   []Note `json:"notes,omitempty"`
}

// Result is what becomes of an installation.
type Result struct {
	Objects  []Object  `json:"objects"`
	Services []Service `json:"services"`
	// Warnings are what the input lacks for a right answer.
	Warnings []string `json:"warnings"`
	// Skipped counts what was read and is no configuration of MetalLB, by kind.
	Skipped map[string]int `json:"skipped,omitempty"`
	// YAML is the manifest of objects of sluice.dev.
	YAML []byte `json:"-"`
}

// Options are what the objects do not say.
type Options struct {
	// Namespace is that of the announcer, where passwords are read.
	Namespace string
	// MetalLB is MetalLB's own namespace: its objects count, and those without a namespace.
	MetalLB string
	// Class is the controller's (controller.class of the chart).
	Class string
}

// Input is a file of YAML documents. Name is for messages.
type Input struct {
	Name string
	Data []byte
}

// statusKinds are written by MetalLB, and say nothing that was to be done.
var statusKinds = []string{"ConfigurationState", "ServiceBGPStatus", "ServiceL2Status"}

// Convert reads objects as `kubectl get -o yaml` prints them, or as manifests have them. Its error
// names the document that is none.
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
		p.About.UID = "" // a List may have it, and a file not
		by[key(p.About)] = append(by[key(p.About)], p)
	}
	return by
}

func key(r kinds.Ref) string { return r.APIVersion + " " + r.String() }
