// Package node looks up keys in YAML trees that keep their line numbers.
package node

import "go.yaml.in/yaml/v3"

// Lookup finds a key of a mapping; nil if there is none.
func Lookup(n *yaml.Node, key string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}
