package kubeproxy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"sluice.dev/sluice/config/node"

	"sluice.dev/sluice/config"
)

// The kind that is read, and the kind that may contain it.
const (
	apiVersion = "kubeproxy.config.k8s.io/v1alpha1"
	kind       = "KubeProxyConfiguration"
	wrapper    = "ConfigMap"
	// wrapperKey is kubeadm's key for it (k8s.io/kubernetes cmd/kubeadm/app/constants
	// KubeProxyConfigMapKey).
	wrapperKey = "config.conf"
)

// maxBytes bounds a file; a ConfigMap has at most 1 MiB.
const maxBytes = 2 << 20

// setting is one field of kube-proxy with a value.
type setting struct {
	path string
	line int
	rule rule
	// text is the value in the file; the fields below have it by type.
	text     string
	flag     bool
	number   int64
	duration time.Duration
	list     []string
}

// reader finds the document in a file and its settings.
type reader struct {
	file string
	// offset is added to a node's line, because the document may be a string in another document.
	offset   int
	settings []setting
	errs     config.Errors
}

func (r *reader) fail(path string, line int, format string, args ...any) {
	r.errs = append(r.errs, config.Error{File: r.file, Line: r.at(line), Path: path,
		Problem: fmt.Sprintf(format, args...)})
}

// noLines is the offset of a string whose lines are not lines of the file.
const noLines = -1

// at returns the line of the file for a node's line; 0 if there is none.
func (r *reader) at(line int) int {
	if line == 0 || r.offset == noLines {
		return 0
	}
	return line + r.offset
}

// document returns the mapping of the one KubeProxyConfiguration of a file.
func (r *reader) document(data []byte) *yaml.Node {
	if len(data) > maxBytes {
		r.fail("", 0, "is larger than %d bytes, and cannot be a configuration of kube-proxy", maxBytes)
		return nil
	}
	all, ok := r.decode(data)
	if !ok {
		return nil
	}
	var found []*yaml.Node
	var kinds []string
	for _, n := range all {
		switch k := text(n, "kind"); k {
		case kind, wrapper:
			found = append(found, n)
		default:
			kinds = append(kinds, strconv.Quote(k))
		}
	}
	switch {
	case len(found) > 1:
		r.fail("", found[1].Line, "is the second %s or %s of the file, keep one", kind, wrapper)
	case len(found) == 0:
		r.fail("", 0, "holds no %s and no %s with one (but: %s); "+
			"try `kubectl -n kube-system get configmap kube-proxy -o yaml`", kind, wrapper, orNone(kinds))
	case text(found[0], "kind") == wrapper:
		return r.unwrap(found[0])
	case text(found[0], "apiVersion") != apiVersion:
		r.fail("apiVersion", found[0].Line, "is %q, this version of sluice reads %s", text(found[0], "apiVersion"),
			apiVersion)
	default:
		return found[0]
	}
	return nil
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "nothing"
	}
	return strings.Join(list, ", ")
}

// decode returns the mappings of all documents of a file.
func (r *reader) decode(data []byte) (list []*yaml.Node, ok bool) {
	if t := bytes.TrimSpace(data); len(t) > 0 && t[0] == '{' {
		data = bytes.ReplaceAll(data, []byte{'\t'}, []byte{' '}) // JSON may be indented with tabs
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var doc yaml.Node
		if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
			return list, true
		} else if err != nil {
			r.fail("", 0, "is neither YAML nor JSON: %s", strings.TrimPrefix(err.Error(), "yaml: "))
			return nil, false
		}
		if n := doc.Content[0]; n.Kind == yaml.MappingNode {
			list = append(list, n)
		} else if n.Tag != "!!null" {
			r.fail("", n.Line, "has a document that is not a mapping")
			return nil, false
		}
	}
}

// unwrap returns the document that a ConfigMap has as a string.
func (r *reader) unwrap(configMap *yaml.Node) *yaml.Node {
	var value *yaml.Node
	data := node.Lookup(configMap, "data")
	if value = node.Lookup(data, wrapperKey); value == nil && data != nil && data.Kind == yaml.MappingNode {
		for i := 1; i < len(data.Content); i += 2 {
			if strings.Contains(data.Content[i].Value, "kind: "+kind) {
				value = data.Content[i]
			}
		}
	}
	if value == nil || value.Kind != yaml.ScalarNode {
		r.fail("data", configMap.Line, "has no key %s with a %s", wrapperKey, kind)
		return nil
	}
	r.offset = noLines // the string is on one line, or folded
	if value.Style&yaml.LiteralStyle != 0 {
		r.offset = value.Line // it begins on the line below the key
	}
	inner := reader{file: r.file, offset: r.offset}
	root := inner.document([]byte(value.Value))
	r.errs = append(r.errs, inner.errs...)
	return root
}

func text(n *yaml.Node, key string) string {
	if v := node.Lookup(n, key); v != nil && v.Kind == yaml.ScalarNode {
		return v.Value
	}
	return ""
}

// walk collects the settings of a mapping, and their problems.
func (r *reader) walk(prefix string, n *yaml.Node, table map[string]rule) {
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		path := key.Value
		if prefix != "" {
			path = prefix + "." + key.Value
		}
		rule, known := table[path]
		switch {
		case seen[key.Value]:
			r.fail(path, key.Line, "is given twice, keep one")
		case prefix == "" && (path == "apiVersion" || path == "kind"):
		case known:
			r.setting(path, key.Line, value, rule)
		case !isSection(path, table):
			r.fail(path, key.Line,
				"is not a field of kube-proxy v1.36 or of earlier versions; remove it, or check its "+
					"spelling")
		case value.Kind == yaml.MappingNode:
			r.walk(path, value, table)
		case value.Tag != "!!null":
			r.fail(path, key.Line, "must be a mapping")
		}
		seen[key.Value] = true
	}
}

// isSection reports whether fields are below a path.
func isSection(path string, table map[string]rule) bool {
	for known := range table {
		if strings.HasPrefix(known, path+".") {
			return true
		}
	}
	return false
}

// setting reads one field; a field with its zero value is not set.
func (r *reader) setting(path string, line int, n *yaml.Node, rule rule) {
	s := setting{path: path, line: r.at(line), rule: rule}
	if n.Tag == "!!null" {
		return
	}
	set, problem := s.read(n)
	if problem != "" {
		r.fail(path, line, "%s", problem)
	} else if set || rule.zeroIsSet {
		r.settings = append(r.settings, s)
	}
}

// read parses a value by its type, and reports whether it is not zero.
func (s *setting) read(n *yaml.Node) (set bool, problem string) {
	if want := s.rule.holds; want == lists || want == anything {
		return s.readMany(n)
	}
	if s.text = n.Value; n.Kind != yaml.ScalarNode {
		return false, "must be a single value, not a list or mapping"
	}
	var err error
	switch s.rule.holds {
	case texts:
		return s.text != "", ""
	case flags:
		if s.flag, err = strconv.ParseBool(n.Value); err != nil || n.Tag != "!!bool" {
			return false, fmt.Sprintf("is %q, must be true or false", n.Value)
		}
		return s.flag, ""
	case numbers:
		if s.number, err = strconv.ParseInt(n.Value, 10, 64); err != nil {
			return false, fmt.Sprintf("is %q, must be a whole number", n.Value)
		}
		return s.number != 0, ""
	default:
		if s.duration, err = time.ParseDuration(n.Value); err != nil || s.duration < 0 {
			return false, fmt.Sprintf("is %q, must be a duration such as 30s, and not negative", n.Value)
		}
		return s.duration != 0, ""
	}
}

// readMany reads a list of texts, or any value of a field whose value is not used.
func (s *setting) readMany(n *yaml.Node) (set bool, problem string) {
	if s.rule.holds == anything {
		s.text = strings.Join(flatten(n, s.path == "featureGates"), ", ")
		return s.text != "", ""
	}
	if n.Kind != yaml.SequenceNode {
		return false, "must be a list"
	}
	for _, e := range n.Content {
		if e.Kind != yaml.ScalarNode {
			return false, "must be a list of texts"
		}
		s.list = append(s.list, e.Value)
	}
	s.text = "[" + strings.Join(s.list, ", ") + "]"
	return len(s.list) > 0, ""
}

// flatten prints the leaves of a tree that are not zero; among features, false is not zero.
func flatten(n *yaml.Node, features bool) (leaves []string) {
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			for _, leaf := range flatten(n.Content[i+1], features) {
				leaves = append(leaves, n.Content[i].Value+": "+leaf)
			}
		}
	case yaml.SequenceNode:
		for _, e := range n.Content {
			leaves = append(leaves, flatten(e, features)...)
		}
	case yaml.ScalarNode:
		if n.Tag != "!!null" && !slices.Contains([]string{"", "0", "0s"}, n.Value) && (features || n.Value != "false") {
			leaves = append(leaves, n.Value)
		}
	}
	return leaves
}

// sorted puts errors in the order of their lines.
func sorted(errs config.Errors) config.Errors {
	slices.SortStableFunc(errs, func(a, b config.Error) int { return a.Line - b.Line })
	return errs
}
