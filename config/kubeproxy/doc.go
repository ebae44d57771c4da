// Package kubeproxy turns the configuration of kube-proxy into one of Sluice's.
//
//	KubeProxyConfiguration ──read──▶ settings ──rules──▶ Result
//	(or a ConfigMap with one)        path, value, line   YAML of ours, and for each
//	                                                     setting its conversion
//
// Every field that kube-proxy v1.36 knows (k8s.io/kube-proxy config/v1alpha1 types.go)
// has a rule, and so has each former field that clusters still have. A field without a rule is an
// error with its line: no field is ignored silently. A field with its zero value counts as not set,
// because kube-proxy replaces it by its default, except where its type distinguishes absent from
// zero.
//
// The package reads no file and no host; the caller gives it bytes.
package kubeproxy

// Fate is how a field was converted.
type Fate string

// The fates.
const (
	Kept      Fate = "kept"       // it means the same here
	Differs   Fate = "differs"    // converted or not, the behaviour is not the same
	NoMeaning Fate = "no meaning" // Sluice has nothing that it would apply to
)

// Field is one field that was set, and its conversion.
type Field struct {
	Line  int    `json:"line"` // in the file; 0 if the document was JSON inside of JSON
	Path  string `json:"path"`
	Value string `json:"value"`
	Fate  Fate   `json:"fate"`
	// Here is the setting that it was converted to, as "path: value"; empty if there is none.
	Here string `json:"here,omitempty"`
	Why  string `json:"why,omitempty"`
}

// Options are the inputs that kube-proxy's configuration does not have.
type Options struct {
	// Interfaces to forward on. Without any the result is not complete.
	Interfaces []string
	// CPUs of a gateway node, by which conntrack.maxPerCore counts; at least 1.
	CPUs int
	// CPUsAssumed: CPUs was not given and is a guess.
	CPUsAssumed bool
}

// Result is a configuration of Sluice, and how it was made.
type Result struct {
	Fields []Field `json:"fields"` // in the order of the file
	// Notes are defaults of kube-proxy that were in force and differ here.
	Notes []string `json:"notes"`
	// Warnings are values to check before the file is used: they are right only for some gateways.
	Warnings []string `json:"warnings"`
	// YAML is the file, with all of the above as comments. It passes config.Parse if
	// Options.Interfaces has an entry.
	YAML []byte `json:"-"`
}

// Convert reads a KubeProxyConfiguration, a ConfigMap that holds one under config.conf
// as kubeadm makes it (or under any one key), or one document of these among several.
// name is for messages. Its error is a config.Errors with every problem.
func Convert(name string, data []byte, o Options) (*Result, error) {
	r := reader{file: name}
	root := r.document(data)
	if root == nil {
		return nil, r.errs
	}
	r.walk("", root, rules())
	c := newConversion(r.settings, o)
	c.apply()
	for _, e := range c.problems {
		e.File = name
		r.errs = append(r.errs, e)
	}
	if len(r.errs) > 0 {
		return nil, sorted(r.errs)
	}
	c.notes()
	c.warn()
	c.settle()
	text := c.yaml()
	if errs := c.check(name); len(errs) > 0 {
		return nil, sorted(errs)
	}
	return &Result{Fields: c.fields, Notes: c.remarks, Warnings: c.warnings, YAML: text}, nil
}

// Known lists the fields that have a rule, for tests that compare them with kube-proxy's own types.
func Known() (paths []string) {
	for path := range rules() {
		paths = append(paths, path)
	}
	return paths
}
