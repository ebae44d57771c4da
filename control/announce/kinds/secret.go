package kinds

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// PasswordIn returns a Reader's Password that reads the Secrets of one namespace, which must be of
// type basic-auth. Secret returns one by its name; nil if there is none.
func PasswordIn(namespace string, secret func(name string) *corev1.Secret) func(from, name string) (string, error) {
	return func(from, name string) (string, error) {
		if namespace == "" || from != "" && from != namespace {
			return "", fmt.Errorf("passwords are read in namespace %q alone, and not in Secret %s/%s", namespace, from,
				name)
		}
		s := secret(name)
		if s == nil {
			return "", fmt.Errorf("there is no Secret %s/%s", namespace, name)
		}
		if s.Type != corev1.SecretTypeBasicAuth {
			return "", fmt.Errorf("the Secret %s/%s is of type %s: must be %s, as MetalLB's", namespace, name, s.Type,
				corev1.SecretTypeBasicAuth)
		}
		return strings.TrimRight(string(s.Data[corev1.BasicAuthPasswordKey]), "\n"), nil
	}
}
