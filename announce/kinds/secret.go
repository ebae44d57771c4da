package kinds

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// maxPassword is the longest key of a TCP MD5 signature, in bytes (TCP_MD5SIG_MAXKEYLEN of
// linux/tcp.h).
const maxPassword = 80

func checkPassword(password string) error {
	if len(password) > maxPassword {
		return fmt.Errorf("the password has %d bytes: must be at most %d", len(password), maxPassword)
	}
	return nil
}

// PasswordIn returns a Reader's Password that reads Secrets of one namespace and of type
// basic-auth. secret returns a Secret by its name; nil if it does not exist. Line ends after a
// password are removed. A missing or empty password is an error, because the session would have no
// TCP MD5 signature (RFC 2385).
func PasswordIn(namespace string, secret func(name string) *corev1.Secret) func(from, name string) (string, error) {
	return func(from, name string) (string, error) {
		if namespace == "" || from != "" && from != namespace {
			return "", fmt.Errorf("passwords are read only in namespace %q, and not in Secret %s/%s", namespace, from,
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
		text, there := s.Data[corev1.BasicAuthPasswordKey]
		if !there {
			return "", fmt.Errorf("the Secret %s/%s has no key %s", namespace, name, corev1.BasicAuthPasswordKey)
		}
		password := strings.TrimRight(string(text), "\r\n")
		if password == "" {
			return "", fmt.Errorf("the password in the Secret %s/%s is empty", namespace, name)
		}
		return password, nil
	}
}
