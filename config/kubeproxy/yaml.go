package kubeproxy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"sluice.dev/sluice/config"
)

// sections is the order of the file, which is that of `sluice config defaults`.
var sections = []string{"nodeName", "interfaces", "nodeAddresses", "proxy", "flows", "kubernetes", "manifests",
	"metrics", "health", "log"}

// width is the column at which comments are wrapped.
const width = 100

// yaml prints the file.
func (c *conversion) yaml() []byte {
	entries := append(slices.Clone(c.entries),
		entry{path: "kubernetes.enabled", value: "true"},
		entry{path: "manifests.directory", value: `""`, comments: []string{"objects come from the API server alone"}})
	slices.SortStableFunc(entries, func(a, b entry) int {
		// Lines of nested mappings come last, so that no mapping is opened twice.
		return cmp.Or(section(a.path)-section(b.path), strings.Count(a.path, ".")-strings.Count(b.path, "."))
	})

	b := &strings.Builder{}
	comment(b, "", "Made from a configuration of kube-proxy. Fields that are not here have their default: "+
		"sluice config defaults")
	fmt.Fprintf(b, "apiVersion: %s\nkind: %s\n", config.APIVersion, config.Kind)
	open := "" // path of the open mapping
	named := false
	for _, e := range entries {
		if !named && section(e.path) > section("interfaces") {
			c.interfaces(b)
			named, open = true, ""
		}
		open = e.print(b, open)
	}
	c.rest(b)
	return []byte(b.String())
}

func section(path string) int {
	name, _, _ := strings.Cut(path, ".")
	return slices.Index(sections, name)
}

// interfaces prints the interfaces of the options, or a template.
func (c *conversion) interfaces(b *strings.Builder) {
	b.WriteString("\n")
	if len(c.options.Interfaces) == 0 {
		comment(b, "", "kube-proxy has no list of interfaces. Name those that service traffic uses:")
		b.WriteString("interfaces: []\n# - name: eth0\n")
		return
	}
	b.WriteString("interfaces:\n")
	for _, name := range c.options.Interfaces {
		fmt.Fprintf(b, "- name: %q\n", name)
	}
}

// print writes a line, after the keys of its mappings that are not open. It returns the path of its
// mapping.
func (e entry) print(b *strings.Builder, open string) string {
	parts := strings.Split(e.path, ".")
	for depth := range parts[:len(parts)-1] {
		path := strings.Join(parts[:depth+1], ".")
		if open != path && !strings.HasPrefix(open, path+".") {
			if depth == 0 {
				b.WriteString("\n")
			}
			fmt.Fprintf(b, "%s%s:\n", strings.Repeat("  ", depth), parts[depth])
		}
	}
	indent := strings.Repeat("  ", len(parts)-1)
	if len(parts) == 1 {
		b.WriteString("\n")
	}
	for _, text := range e.comments {
		comment(b, indent, text)
	}
	fmt.Fprintf(b, "%s%s: %s\n", indent, parts[len(parts)-1], e.value)
	return strings.Join(parts[:len(parts)-1], ".")
}

// rest prints the fields without a line in the file.
func (c *conversion) rest(b *strings.Builder) {
	heading := "\n# Fields of kube-proxy's configuration without a line above:\n"
	for _, f := range c.fields {
		if f.Here == "" {
			b.WriteString(heading)
			heading = ""
			comment(b, "", fmt.Sprintf("- %s: %s", f.Path, f.Value))
			comment(b, "", fmt.Sprintf("  %s: %s", f.Fate, f.Why))
		}
	}
	heading = "\n# Defaults of kube-proxy that differ in Sluice:\n"
	for _, n := range c.remarks {
		b.WriteString(heading)
		heading = ""
		comment(b, "", "- "+n)
	}
}

// comment writes text as comment lines of bounded width.
func comment(b *strings.Builder, indent, text string) {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || !unicode.IsPrint(r) {
			return ' ' // YAML forbids some of these characters in comments, and some end a line
		}
		return r
	}, text)
	prefix := indent + "# "
	if lead := len(text) - len(strings.TrimLeft(text, " ")); lead > 0 {
		prefix += text[:lead]
	}
	line := prefix
	for _, word := range strings.Fields(text) {
		if line != prefix && len(line)+1+len(word) > width {
			b.WriteString(line + "\n")
			line = indent + "#   " + word
			continue
		}
		if line != prefix && !strings.HasSuffix(line, " ") {
			line += " "
		}
		line += word
	}
	b.WriteString(line + "\n")
}
