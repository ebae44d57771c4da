package objects

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// Manifests is the kind of Source that objects from files have.
const Manifests = "manifests"

// Source is where an object was read: the kind of source (such as Manifests) and the path in it.
// Document is the number of the document in the file, from 1; it is for messages only and does not
// distinguish two sources.
type Source struct {
	Kind     string `json:"kind"`
	Path     string `json:"path,omitempty"`
	Document int    `json:"document,omitempty"`
}

// String prints path#document, or the kind where there is no path.
func (s Source) String() string {
	switch {
	case s.Path == "":
		return s.Kind
	case s.Document == 0:
		return s.Path
	}
	return fmt.Sprintf("%s#%d", s.Path, s.Document)
}

// Contains reports whether o is at the path of s or below it.
func (s Source) Contains(o Source) bool {
	return s.Kind == o.Kind && (s.Path == o.Path || strings.HasPrefix(o.Path, strings.TrimSuffix(s.Path, "/")+"/"))
}

// Place is the source without the document.
func (s Source) Place() Source { return Source{Kind: s.Kind, Path: s.Path} }

// CompareSources orders by kind, path and document.
func CompareSources(a, b Source) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Document, b.Document))
}

// ObjectID names an object as the API server does.
type ObjectID struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// The kinds of objects that are read.
const (
	KindService       = "Service"
	KindEndpointSlice = "EndpointSlice"
	KindNode          = "Node"
)

// String prints Kind namespace/name; nothing where no object is known.
func (id ObjectID) String() string {
	switch {
	case id == (ObjectID{}):
		return ""
	case id.Namespace == "":
		return id.Kind + " " + id.Name
	}
	return id.Kind + " " + id.Namespace + "/" + id.Name
}

// Compare orders by kind, namespace and name.
func (id ObjectID) Compare(o ObjectID) int {
	return cmp.Or(cmp.Compare(id.Kind, o.Kind), cmp.Compare(id.Namespace, o.Namespace), cmp.Compare(id.Name, o.Name))
}

// Severity is the consequence of a Problem.
type Severity string

const (
	// Refused: the field or object that the Problem names is not served.
	Refused Severity = "refused"
	// Warning: it is served, but perhaps not as its author intended.
	Warning Severity = "warning"
)

// Problem is one problem with one field of one object. It is comparable.
type Problem struct {
	Source   Source   `json:"source"`
	Object   ObjectID `json:"object,omitzero"`
	Field    string   `json:"field,omitempty"`
	Message  string   `json:"message"`
	Severity Severity `json:"severity"`
	// Serving: an earlier version of the object is served meanwhile.
	Serving bool `json:"serving,omitempty"`
	// Reason is the kind of Problem where Severity is not specific enough; see Why.
	Reason Reason `json:"reason,omitempty"`
}

// String prints the Problem as one line: place, object, field, message.
func (p Problem) String() string {
	parts := make([]string, 0, 4)
	if p.Source != (Source{}) {
		parts = append(parts, p.Source.String())
	}
	if p.Object != (ObjectID{}) {
		id := p.Object
		id.Namespace, id.Name = clip(id.Namespace, maxName), clip(id.Name, maxName)
		parts = append(parts, id.String())
	}
	if p.Field != "" {
		parts = append(parts, p.Field)
	}
	return Printable(strings.Join(append(parts, p.Message), ": "))
}

// CompareProblems orders by object, then by source, field, message and the rest.
func CompareProblems(a, b Problem) int {
	if c := a.Object.Compare(b.Object); c != 0 {
		return c
	}
	if c := CompareSources(a.Source, b.Source); c != 0 {
		return c
	}
	if c := cmp.Compare(a.Field, b.Field); c != 0 {
		return c
	}
	if c := cmp.Compare(a.Message, b.Message); c != 0 {
		return c
	}
	if a.Serving != b.Serving {
		if a.Serving {
			return 1
		}
		return -1
	}
	return cmp.Or(cmp.Compare(a.Severity, b.Severity), cmp.Compare(a.Reason, b.Reason))
}

// Printable replaces runes that are not printable, and bytes that are not UTF-8, so that text of an
// object or file can neither forge further lines nor control a terminal (unicode.IsPrint: control
// characters of C0 and C1, separators of lines, and marks that change the direction of text are not
// printable). Kept runes stay.
func Printable(s string, kept ...rune) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) || slices.Contains(kept, r) {
			return r
		}
		return ' '
	}, s)
}

// LimitAlike drops, of each object's problems that have the same Reason, those beyond
// MaxFieldProblems, and adds one with their number. It leaves MaxFieldProblems and one more, which
// is such a number of LimitProblems. The problems must be in order, and stay so.
func LimitAlike(problems []Problem) []Problem {
	type kind struct {
		object ObjectID
		reason Reason
	}
	count := map[kind]int{}
	for i := range problems {
		count[kind{problems[i].Object, problems[i].Why()}]++
	}
	var more []Problem
	seen := map[kind]int{}
	problems = slices.DeleteFunc(problems, func(p Problem) bool {
		k := kind{p.Object, p.Why()}
		if seen[k]++; seen[k] <= MaxFieldProblems || count[k] <= MaxFieldProblems+1 {
			return false
		}
		if seen[k] == count[k] {
			p.Field, p.Message = "", fmt.Sprintf("%d more problems", count[k]-MaxFieldProblems)
			more = append(more, p)
		}
		return true
	})
	problems = append(problems, more...)
	slices.SortFunc(problems, CompareProblems)
	return problems
}
