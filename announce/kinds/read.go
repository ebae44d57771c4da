package kinds

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// API groups of kinds.
const (
	Group   = "sluice.dev"
	MetalLB = "metallb.io"
)

// Ref names an object.
type Ref struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
	UID        string `json:"uid,omitempty"`
}

// OfNode names a Node: problems of a host that concern no object are about its Node.
func OfNode(name string) Ref { return Ref{APIVersion: "v1", Kind: "Node", Name: name} }

func (r Ref) String() string {
	if r.Namespace != "" {
		return fmt.Sprintf("%s %s/%s", r.Kind, r.Namespace, r.Name)
	}
	return r.Kind + " " + r.Name
}

// RefOf returns the Ref of an object.
func RefOf(o *unstructured.Unstructured) Ref {
	return Ref{o.GetAPIVersion(), o.GetKind(), o.GetNamespace(), o.GetName(), string(o.GetUID())}
}

// Reasons of Problems.
const (
	Invalid      = "Invalid"      // the object cannot be parsed
	NameTaken    = "NameTaken"    // another object of its kind has the name, and is used
	FieldNotDone = "FieldNotDone" // Sluice does not support a field
	NotFound     = "NotFound"     // an object that it refers to does not exist
	BFDNotUp     = "BFDNotUp"     // its BFD session is not up
	Shared       = "Shared"       // all nodes have a value that must be unique to each
	NotServed    = "NotServed"    // the gateway does not serve an interface that it names or needs
	PrefixLimit  = "PrefixLimit"  // the peer sends too many routes
	RouterTaken  = "RouterTaken"  // another BGPPeer of the node has the session with the router, and is used
	Unread       = "Unread"       // objects, or a file, cannot be read (any more)
)

// Problem is a mistake in an object, and its effect.
type Problem struct {
	About        Ref
	Reason, Note string
}

// Reader parses objects. It keeps the last readable version of each.
type Reader struct {
	// Password returns the password in a Secret of a namespace. nil: there are no Secrets.
	Password func(namespace, name string) (string, error)
	// Unlisted: MetalLB's pools cannot be listed and are missing in the objects. Their previous
	// versions stay in force.
	Unlisted bool

	last map[Ref]any
}

// reading is one call of Read.
type reading struct {
	*Reader
	next     map[Ref]any
	problems []Problem
	set      Set
	pools    map[string]bool // by name, including unreadable ones
	alias    map[string]Community
	profiles map[string]*BFD
}

// Read returns the Set of all objects. Objects of sluice.dev come first: if two of a kind have one
// name, the first usable one is used.
func (r *Reader) Read(objects []*unstructured.Unstructured) (*Set, []Problem) {
	objects = slices.Clone(objects)
	slices.SortFunc(objects, func(a, b *unstructured.Unstructured) int {
		return cmp.Or(-strings.Compare(a.GetAPIVersion(), b.GetAPIVersion()), // sluice.dev, metallb.io
			strings.Compare(a.GetKind(), b.GetKind()), strings.Compare(a.GetNamespace(), b.GetNamespace()),
			strings.Compare(a.GetName(), b.GetName()))
	})
	run := &reading{Reader: r, next: map[Ref]any{}, pools: map[string]bool{}, alias: map[string]Community{},
		profiles: map[string]*BFD{}}
	taken := map[string]bool{}
	of := func(kinds ...string) iter.Seq[*unstructured.Unstructured] {
		return func(yield func(*unstructured.Unstructured) bool) {
			for _, o := range objects {
				if !slices.Contains(kinds, o.GetKind()) {
					continue
				}
				name := kinds[0] + " " + o.GetName()
				if taken[name] {
					run.note(o, NameTaken, "another %s has the name %s, and this one is not used: rename one",
						o.GetKind(), o.GetName())
					continue
				}
				if !yield(o) {
					return
				}
				_, taken[name] = run.next[RefOf(o)] // an unusable object does not occupy the name
			}
		}
	}
	// Objects that others refer to come first.
	for o := range of("AddressPool", "IPAddressPool") {
		run.pool(o)
	}
	if r.Unlisted {
		run.unlisted()
	}
	for o := range of("Community") {
		run.community(o)
	}
	for o := range of("BFDProfile") {
		if b, ok := readOne(run, o, newBFD); ok {
			run.profiles[o.GetName()] = b
		}
	}
	for o := range of("BGPPeer") {
		run.peer(o)
	}
	for o := range of("BGPAdvertisement") {
		a, ok := readOne(run, o, func(s *AdvertisementSpec) (*Advertisement, error) {
			return newAdvertisement(o.GetName(), s, run.alias)
		})
		if ok {
			run.set.Advertisements = append(run.set.Advertisements, a)
			run.checkPools(o, &a.Selection)
			run.checkPeers(o, a)
		}
	}
	for o := range of("L2Advertisement") {
		a, ok := readOne(run, o, func(s *L2AdvertisementSpec) (*L2Advertisement, error) {
			return newL2Advertisement(RefOf(o), s)
		})
		if ok {
			run.set.Layer2 = append(run.set.Layer2, a)
			run.checkPools(o, &a.Selection)
		}
	}
	r.last = run.next
	return &run.set, run.problems
}

func (r *reading) note(o *unstructured.Unstructured, reason, format string, args ...any) {
	r.problems = append(r.problems, Problem{RefOf(o), reason, fmt.Sprintf(format, args...)})
}

// readOne parses an object's specification, or returns its previous version.
func readOne[S, T any](r *reading, o *unstructured.Unstructured, make func(*S) (T, error)) (value T, ok bool) {
	ref := RefOf(o)
	raw, err := specOf(o)
	if err == nil {
		if gaps := Gaps(o.GetKind(), raw); len(gaps) > 0 {
			r.note(o, FieldNotDone, "%s", GapsNote(gaps))
		}
		var spec S
		if err = decode(raw, &spec); err == nil {
			value, err = make(&spec)
		}
	}
	if err != nil {
		state := "it is not used"
		if before, there := r.last[ref].(T); there {
			value, ok, state = before, true, "its previous version stays in force"
			r.next[ref] = before
		}
		r.note(o, Invalid, "%v; %s", err, state)
		return value, ok
	}
	r.next[ref] = value
	return value, true
}

// mayBeEmpty are kinds whose specification may be missing.
var mayBeEmpty = []string{"BGPAdvertisement", "L2Advertisement", "BFDProfile"}

func specOf(o *unstructured.Unstructured) (map[string]any, error) {
	raw, there := o.Object["spec"].(map[string]any)
	if !there && !slices.Contains(mayBeEmpty, o.GetKind()) {
		return nil, errors.New("spec is missing")
	}
	return raw, nil
}

func decode(raw map[string]any, into any) error {
	text, err := json.Marshal(raw)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return fmt.Errorf("spec.%s is of type %s: must be of type %s", wrong.Field, wrong.Value, typeName(wrong.Type))
	}
	if err != nil {
		return fmt.Errorf("spec: %w", err)
	}
	return nil
}

// typeName returns the JSON name of a type.
func typeName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "bool"
	case reflect.String:
		return "string"
	case reflect.Slice:
		return "array"
	case reflect.Struct, reflect.Map:
		return "object"
	}
	return "number"
}

func (r *reading) community(o *unstructured.Unstructured) {
	read := func(s *CommunitySpec) (map[string]Community, error) {
		names := map[string]Community{}
		var errs []error
		for _, a := range s.Communities {
			c, err := ParseCommunity(a.Value)
			if err != nil {
				errs = append(errs, fmt.Errorf("communities: %s: %w", a.Name, err))
			}
			names[a.Name] = c
		}
		return names, errors.Join(errs...)
	}
	if names, ok := readOne(r, o, read); ok {
		maps.Copy(r.alias, names)
	}
}

func (r *reading) peer(o *unstructured.Unstructured) {
	p, ok := readOne(r, o, func(s *PeerSpec) (*Peer, error) {
		p, err := newPeer(o.GetName(), s)
		if err != nil {
			return nil, err
		}
		p.Ref, p.Created = RefOf(o), o.GetCreationTimestamp().Time
		if p.passwordRef != "" {
			namespace := cmp.Or(s.PasswordSecret.Namespace, o.GetNamespace())
			if r.Password == nil {
				return nil, errors.New("passwordSecret: Secrets are read from the API server only, and not with " +
					"--config: write password")
			}
			if p.Password, err = r.Password(namespace, p.passwordRef); err != nil {
				return nil, fmt.Errorf("passwordSecret: %w", err)
			}
			if err = checkPassword(p.Password); err != nil {
				return nil, fmt.Errorf("passwordSecret: %w", err)
			}
		}
		if s.BFDProfile != "" {
			if p.BFD = r.profiles[s.BFDProfile]; p.BFD == nil {
				return nil, fmt.Errorf("bfdProfile: there is no BFDProfile %s that can be used", s.BFDProfile)
			}
		}
		if p.MultiHop { // a Gap
			p.BFD = nil
		}
		return p, nil
	})
	if ok {
		r.set.Peers = append(r.set.Peers, p)
	}
}

// checkPools notes pools that an advertisement names and that do not exist.
func (r *reading) checkPools(o *unstructured.Unstructured, s *Selection) {
	for _, name := range s.pools {
		if !r.pools[name] {
			r.note(o, NotFound, "ipAddressPools: there is no pool %s", name)
		}
	}
}

// checkPeers notes peers that an advertisement names and that do not exist.
func (r *reading) checkPeers(o *unstructured.Unstructured, a *Advertisement) {
	for _, name := range a.peers {
		if !slices.ContainsFunc(r.set.Peers, func(p *Peer) bool { return p.Name == name }) {
			r.note(o, NotFound, "peers: there is no BGPPeer %s", name)
		}
	}
}
