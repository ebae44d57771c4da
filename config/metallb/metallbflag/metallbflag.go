// Package metallbflag is the flag --metallb-namespace of the programs that read MetalLB's objects.
package metallbflag

import "errors"

// Name is the flag's.
const Name = "metallb-namespace"

// Default is the namespace in which MetalLB's own manifests put it.
const Default = "metallb-system"

// Check returns the namespace whose objects of metallb.io are read; "" if none are, as reads is
// false, which is what the flag off sets. An empty namespace is an error: it must not mean all of
// them, nor that all objects are gone.
func Check(namespace string, reads bool, off string) (string, error) {
	if !reads {
		return "", nil
	}
	if namespace == "" {
		return "", errors.New("--" + Name + " is empty: name MetalLB's namespace, or set --" + off + "=false")
	}
	return namespace, nil
}
