package config

import "sigs.k8s.io/yaml"

// YAML prints a configuration as a file that Parse reads back to the same value.
func (c *Configuration) YAML() ([]byte, error) { return yaml.Marshal(c) }
