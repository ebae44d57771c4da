// Package kubeproxy converts a configuration of kube-proxy into one of Sluice.
//
//	KubeProxyConfiguration ──read──▶ settings ──rules──▶ Result
//	(or a ConfigMap with one)        path, value, line   YAML of ours, and for each
//	                                                     setting its conversion
//
// Every field of kube-proxy v1.36 has a rule (k8s.io/kube-proxy config/v1alpha1 types.go), and so
// has each former field that clusters still use. A field without a rule is an error with its line:
// no field is ignored silently. A field with its zero value counts as not set, because kube-proxy
// replaces it with its default, unless its type distinguishes a missing value from zero.
//
// The package reads no file and no host; the caller gives it bytes.
package kubeproxy

// Fate is how a field was converted.
type Fate string

// The fates.
const (
	Kept      Fate = "kept"       // the same meaning here
	Differs   Fate = "differs"    // the behaviour is not the same, whether converted or not
	NoMeaning Fate = "no meaning" // Sluice has nothing to which it applies
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

// Options are inputs that kube-proxy's configuration does not contain.
type Options struct {
	// Interfaces are the interfaces to forward on. Without any the result is not complete.
	Interfaces []string
	// CPUs is the number of CPUs of a gateway node, for conntrack.maxPerCore; at least 1.
	CPUs int
	// CPUsAssumed: CPUs was not given and is a guess.
	CPUsAssumed bool
}

// Result is a configuration of Sluice, with a report of the conversion.
type Result struct {
	Fields []Field `json:"fields"` // in the order of the file
	// Notes are defaults of kube-proxy that were in force and that differ here.
	Notes []string `json:"notes"`
	// Warnings name values to check before use: they are right only for some gateways.
	Warnings []string `json:"warnings"`
	// YAML is the file, with the report as comments. It passes config.Parse if Options.Interfaces
	// has an entry.
	YAML []byte `json:"-"`
}

// Convert reads a KubeProxyConfiguration, a ConfigMap with one under config.conf as kubeadm makes
// it (or under any single key), or a file of several documents with one of these. name is for
// messages. Its error is a config.Errors with every problem.
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
