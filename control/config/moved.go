package config

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	oneRingSize = "is now tuning.ringSize, the size of all four rings of a socket"
)

// moved is what became of the fields of version 0.0 that this version does not have: the name
// that each has now, or the constant or the derived value in its place and why. A file that has
// such a field is refused with this text.
var moved = map[string]string{
	"frames.size":      "is now tuning.frameSize",
	"frames.perQueue":  "is now derived: two frames for each descriptor of tuning.ringSize",
	"rings.rx":         oneRingSize,
	"rings.tx":         oneRingSize,
	"rings.fill":       oneRingSize,
	"rings.completion": oneRingSize,
}

// movedFrom lists the names that a group of version 0.0 had and that are in moved.
func movedFrom(group string) (names []string) {
	for path := range moved {
		if name, ok := strings.CutPrefix(path, group+"."); ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// unknown refuses a field that its mapping does not have.
func (d *decoder) unknown(path string, key, value *yaml.Node, known []string) {
	if text, ok := moved[path]; ok {
		d.fail(path, key.Line, "%s", text)
		return
	}
	names := movedFrom(path)
	if len(names) == 0 {
		d.fail(path, key.Line, "is no known field, %s", suggest(key.Value, known))
		return
	}
	if value.Kind != yaml.MappingNode || len(value.Content) == 0 {
		texts := make([]string, len(names))
		for i, name := range names {
			texts[i] = fmt.Sprintf("%s %s", name, moved[join(path, name)])
		}
		d.fail(path, key.Line, "is no group of fields any more: %s", strings.Join(texts, "; "))
		return
	}
	for i := 0; i+1 < len(value.Content); i += 2 {
		name := value.Content[i]
		at := join(path, name.Value)
		if text, ok := moved[at]; ok {
			d.fail(at, name.Line, "%s", text)
		} else {
			d.fail(at, name.Line, "is no known field, and %s is no group of fields any more", path)
		}
	}
}
