package kinds

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// A peer with a password never gets a session without it, or with a part of it.
func TestPasswords(t *testing.T) {
	t.Parallel()
	basic := func(data map[string][]byte) *corev1.Secret {
		return &corev1.Secret{Type: corev1.SecretTypeBasicAuth, Data: data}
	}
	of := func(password string) *corev1.Secret { return basic(map[string][]byte{"password": []byte(password)}) }
	const ref = ", passwordSecret: {name: s, namespace: sys}"
	for _, c := range []struct {
		name, ends, field string
		secret            *corev1.Secret
		password, want    string
	}{
		{name: "good", field: ref, secret: of("abc"), password: "abc"},
		{name: "80 bytes", field: ref, secret: of(strings.Repeat("x", 80)), password: strings.Repeat("x", 80)},
		{name: "line end", field: ref, secret: of(strings.Repeat("x", 80) + "\r\n"), password: strings.Repeat("x", 80)},
		{name: "no Secret", field: ref, want: "there is no Secret sys/s"},
		{name: "no key", field: ref, secret: basic(map[string][]byte{"Password": []byte("a")}),
			want: "has no key password"},
		{name: "empty", field: ref, secret: of(""), want: "password in the Secret sys/s is empty"},
		{name: "line ends alone", field: ref, secret: of("\r\n\n"), want: "password in the Secret sys/s is empty"},
		{name: "81 bytes", field: ref, secret: of(strings.Repeat("x", 81)), want: "81 bytes: must be at most 80"},
		{name: "no name", field: ", passwordSecret: {namespace: sys}", want: "passwordSecret: name is missing"},
		{name: "81 bytes in the peer", field: ", password: " + strings.Repeat("x", 81),
			want: "81 bytes: must be at most 80"},
		{name: "unnumbered", ends: "interface: eth0", field: ref, secret: of("abc"),
			want: "not with an unnumbered peer"},
	} {
		if c.ends == "" {
			c.ends = "peerASN: 2, peerAddress: 10.0.0.1"
		}
		r := &Reader{Password: PasswordIn("sys", func(string) *corev1.Secret { return c.secret })}
		peer := object(t, own, "BGPPeer", "x", "{myASN: 1, "+c.ends+c.field+"}")
		set, problems := r.Read([]*unstructured.Unstructured{peer})
		switch {
		case c.want == "" && (len(problems) > 0 || len(set.Peers) != 1 || set.Peers[0].Password != c.password):
			t.Errorf("%s: %+v, peers %d", c.name, problems, len(set.Peers))
		case c.want != "" && (len(set.Peers) > 0 || len(problems) != 1 || !strings.Contains(problems[0].Note, c.want)):
			t.Errorf("%s: peers %d, problems %+v, want %q", c.name, len(set.Peers), problems, c.want)
		}
	}
}
