package config

import (
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// comments returns the comments of defaults.yaml by the paths of their fields. The fields of a
// list's elements have theirs in an example, which is the end of the list's comment.
func comments() map[string]string {
	found := map[string]string{}
	collect(found, "", string(defaultsYAML))
	delete(found, "apiVersion") // the comment on the whole file
	return found
}

// example is the first line of an example within a comment.
var example = regexp.MustCompile(`(?m)^ *- name: `)

func collect(found map[string]string, path string, text string) {
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(joined(text)), &doc); err != nil {
		panic("config: the text about " + path + " in defaults.yaml is no YAML: " + err.Error())
	}
	walk(found, path, doc.Content[0])
}

func walk(found map[string]string, path string, n *yaml.Node) {
	if n.Kind == yaml.SequenceNode && len(n.Content) > 0 && n.Content[0].Kind == yaml.MappingNode {
		walk(found, path+"[]", n.Content[0])
	}
	if n.Kind != yaml.MappingNode {
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		at := join(path, key.Value)
		comment := uncommented(strings.Join([]string{key.HeadComment, key.LineComment, value.LineComment}, "\n"))
		if from := example.FindStringIndex(comment); from != nil {
			collect(found, at, comment[from[0]:])
			comment = strings.TrimSuffix(strings.TrimSpace(comment[:from[0]]), "Each has these fields:")
		}
		if words := strings.Join(strings.Fields(comment), " "); words != "" {
			found[at] = words
		}
		walk(found, at, value)
	}
}

// joined appends comments that go on, far to the right of the field, to the field's line: the
// library takes them for the next field's.
func joined(text string) string {
	const far = 6 // columns; a comment above a field is nearer to the enclosing field's column
	var lines []string
	for _, line := range strings.Split(text, "\n") {
		comment := strings.TrimLeft(line, " ")
		if n := len(lines); n > 0 && strings.HasPrefix(comment, "#") {
			before := lines[n-1]
			field := len(before) - len(strings.TrimLeft(before, " "))
			if field < len(before) && before[field] != '#' && len(line)-len(comment) > field+far {
				if strings.Contains(before, " # ") {
					comment = strings.TrimPrefix(comment, "#")
				}
				lines[n-1] = before + " " + comment
				continue
			}
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// uncommented removes the mark of a comment from each line.
func uncommented(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimPrefix(strings.TrimSpace(lines[i]), "#")
	}
	return strings.Join(lines, "\n")
}
