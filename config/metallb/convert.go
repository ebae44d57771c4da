package metallb

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	sigsyaml "sigs.k8s.io/yaml"

	"sluice.dev/sluice/announce/kinds"
)

// converted is an object of MetalLB with its object of sluice.dev.
type converted struct {
	entry *Object
	from  *unstructured.Unstructured
	own   *unstructured.Unstructured // nil: there is none
	gaps  []kinds.Gap
}

// known reports whether the announcer or the controller reads objects of this kind of MetalLB.
func known(o *unstructured.Unstructured) bool {
	return kinds.Known(o.GetKind()) && o.GetKind() != "AddressPool" // MetalLB deprecates its own AddressPool
}

// asItIs reads MetalLB's objects like the announcer does, and returns the problems of each.
func (c *conversion) asItIs() map[string][]kinds.Problem {
	r := &kinds.Reader{Password: kinds.PasswordIn(c.options.Namespace, func(name string) *corev1.Secret {
		return c.secrets[c.options.Namespace+"/"+name]
	})}
	var list []*unstructured.Unstructured
	for _, o := range c.theirs {
		if known(o) && !c.elsewhere(o) {
			list = append(list, o)
		}
	}
	_, problems := r.Read(list)
	return problemsOf(problems)
}

// elsewhere reports whether an object is in a namespace other than MetalLB's.
func (c *conversion) elsewhere(o *unstructured.Unstructured) bool {
	return o.GetNamespace() != "" && o.GetNamespace() != c.options.MetalLB
}

// convert fills in the objects of the result, with the objects of sluice.dev.
func (c *conversion) convert(asItIs map[string][]kinds.Problem) {
	slices.SortStableFunc(c.theirs, func(a, b *unstructured.Unstructured) int {
		return cmp.Or(cmp.Compare(order(a.GetKind()), order(b.GetKind())), cmp.Compare(a.GetKind(), b.GetKind()),
			cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	c.result.Objects = make([]Object, len(c.theirs))
	for i, o := range c.theirs {
		e := &c.result.Objects[i]
		ref := kinds.RefOf(o)
		ref.UID = ""
		*e = Object{Object: ref.String(), AsItIs: All}
		if !known(o) {
			e.AsItIs = Nothing
			e.Notes = []Note{{Text: "not a kind that Sluice knows", Do: "check whether you need it"}}
			continue
		}
		if c.elsewhere(o) {
			e.AsItIs = Nothing
			e.Notes = []Note{{Text: "is not in namespace " + c.options.MetalLB + ", the only one whose objects " +
				"MetalLB, announcer and controller read",
				Do: fmt.Sprintf("remove it; or, if MetalLB runs in namespace %s, "+
					"give --metallb-namespace=%[1]s here, and metallb.namespace to the chart", o.GetNamespace())}}
			continue
		}
		one := converted{entry: e, from: o}
		spec, _, _ := unstructured.NestedMap(o.Object, "spec")
		one.gaps = kinds.Gaps(o.GetKind(), spec)
		for _, g := range one.gaps {
			e.part()
			e.Notes = append(e.Notes, Note{g.Path, g.Why, g.Do})
		}
		taken := false
		for _, p := range asItIs[key(ref)] {
			switch p.Reason {
			case kinds.FieldNotDone:
				e.part()
				continue // its Gaps are noted above
			case kinds.Invalid, kinds.NameTaken:
				e.AsItIs = Nothing
				taken = taken || p.Reason == kinds.NameTaken
			}
			e.Notes = append(e.Notes, Note{Text: strings.ReplaceAll(p.Note, "\n", "; ")})
		}
		if !taken {
			one.own = ownOf(o, one.gaps)
		}
		c.secretNote(&one)
		c.own = append(c.own, one)
	}
	c.readBack()
}

// part notes that the object is only read in part.
func (o *Object) part() {
	if o.AsItIs == All {
		o.AsItIs = Part
	}
}

// order sorts objects that others refer to first.
func order(kind string) int {
	list := []string{"IPAddressPool", "Community", "BFDProfile", "BGPPeer", "BGPAdvertisement", "L2Advertisement"}
	if i := slices.Index(list, kind); i >= 0 {
		return i
	}
	return len(list)
}

// ownOf returns an object of MetalLB as an object of sluice.dev.
func ownOf(o *unstructured.Unstructured, gaps []kinds.Gap) *unstructured.Unstructured {
	kind := o.GetKind()
	if kind == "IPAddressPool" {
		kind = "AddressPool"
	}
	own := &unstructured.Unstructured{Object: map[string]any{"apiVersion": kinds.Group + "/v1alpha1", "kind": kind}}
	own.SetName(o.GetName())
	own.SetLabels(o.GetLabels())
	spec, _, _ := unstructured.NestedMap(o.Object, "spec") // a copy
	if spec == nil {
		spec = map[string]any{}
	}
	for _, g := range gaps {
		unstructured.RemoveNestedField(spec, strings.Split(strings.TrimPrefix(g.Path, "spec."), ".")...)
	}
	kinds.DropIdle(spec)
	if ref, ok := spec["passwordSecret"].(map[string]any); ok {
		delete(ref, "namespace")
		if len(ref) == 0 {
			delete(spec, "passwordSecret")
		}
	}
	own.Object["spec"] = spec
	return own
}

// secretNote notes where a password must be.
func (c *conversion) secretNote(one *converted) {
	name, _, _ := unstructured.NestedString(one.from.Object, "spec", "passwordSecret", "name")
	if one.own == nil || name == "" || c.secrets[c.options.Namespace+"/"+name] != nil {
		return
	}
	namespace, _, _ := unstructured.NestedString(one.from.Object, "spec", "passwordSecret", "namespace")
	namespace = cmp.Or(namespace, one.from.GetNamespace())
	one.entry.Notes = append(one.entry.Notes, Note{"spec.passwordSecret",
		"passwords are read only in the announcer's namespace, from Secrets that announcer.passwordSecrets names",
		fmt.Sprintf(`kubectl -n %s create secret generic %s --type=kubernetes.io/basic-auth `+
			`--from-literal=password="$(kubectl -n %s get secret %s -o go-template='{{.data.password|base64decode}}')"`,
			c.options.Namespace, name, namespace, name)})
}

// readBack reads the made objects like the announcer will, and removes objects that it would not
// use.
func (c *conversion) readBack() {
	r := &kinds.Reader{Password: func(string, string) (string, error) { return "", nil }}
	list := []*unstructured.Unstructured{}
	for _, one := range c.own {
		if one.own != nil {
			list = append(list, one.own)
		}
	}
	_, all := r.Read(list)
	problems := problemsOf(all)
	for i := range c.own {
		one := &c.own[i]
		if one.own == nil {
			continue
		}
		ref := kinds.RefOf(one.own)
		if slices.ContainsFunc(problems[key(ref)], func(p kinds.Problem) bool { return p.Reason == kinds.Invalid }) {
			one.own = nil
			continue
		}
		one.entry.Becomes = ref.String()
	}
}

// manifest returns the objects of sluice.dev.
func (c *conversion) manifest() []byte {
	var b bytes.Buffer
	for _, one := range c.own {
		if one.own == nil {
			continue
		}
		if b.Len() > 0 {
			b.WriteString("---\n")
		}
		fmt.Fprintf(&b, "# %s of %s\n", one.entry.Object, one.from.GetAPIVersion())
		for _, g := range one.gaps {
			fmt.Fprintf(&b, "# without %s: %s\n", g.Path, g.Why)
		}
		b.Write(text(one.own))
	}
	return b.Bytes()
}

// text returns an object as YAML, with its parts in their usual order.
func text(o *unstructured.Unstructured) []byte {
	var b bytes.Buffer
	for _, part := range []string{"apiVersion", "kind", "metadata", "spec"} {
		one, err := sigsyaml.Marshal(map[string]any{part: o.Object[part]})
		if err != nil {
			panic("metallb: an object that was read as YAML cannot be written as such: " + err.Error())
		}
		b.Write(one)
	}
	return b.Bytes()
}

// SkippedText lists the skipped objects, such as "2 of kind Deployment"; empty if there are none.
func (r *Result) SkippedText() string {
	var list []string
	for _, kind := range slices.Sorted(maps.Keys(r.Skipped)) {
		list = append(list, fmt.Sprintf("%d of kind %s", r.Skipped[kind], kind))
	}
	return strings.Join(list, ", ")
}
