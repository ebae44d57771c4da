// Package metallbflag has the flag --metallb-namespace of the programs that read MetalLB's objects.
package metallbflag

import "errors"

// Name is the name of the flag.
const Name = "metallb-namespace"

// Default is the namespace of MetalLB's own manifests.
const Default = "metallb-system"

// Check returns the namespace whose objects of metallb.io are read; "" if none are read because
// reads is false, which the flag off sets. An empty namespace is an error: it must mean neither all
// namespaces nor that all objects were deleted.
func Check(namespace string, reads bool, off string) (string, error) {
	if !reads {
		return "", nil
	}
	if namespace == "" {
		return "", errors.New("--" + Name + " is empty: set it to MetalLB's namespace, or set --" + off + "=false")
	}
	return namespace, nil
}
