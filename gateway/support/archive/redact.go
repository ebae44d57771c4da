package archive

import (
	"bytes"
	"cmp"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"
)

// removed is the text in place of a secret.
const removed = "(removed)"

var (
	// secretKey matches names of fields whose text may be a secret.
	secretKey = regexp.MustCompile(`(?i)(passw|secret|token|credential|bearer|authorization|private|apikey|` +
		`^key$|[a-z]key$|^seed$)`)
	privateKeys = regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?` +
		`(-----END [A-Z0-9 ]*PRIVATE KEY-----|$)`)
	bearers  = regexp.MustCompile(`(?i)(bearer\s+)[A-Za-z0-9._~+/=-]{8,}`)
	userInfo = regexp.MustCompile(`(://[^/\s:@"]*):[^/\s@"]+@`)
	// jwts matches signed tokens (RFC 7519), such as service account tokens.
	jwts = regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*`)
)

// withoutSecrets replaces the text that looks like a secret.
func withoutSecrets(text []byte) []byte {
	text = privateKeys.ReplaceAll(text, []byte(removed))
	text = bearers.ReplaceAll(text, []byte("${1}"+removed))
	text = jwts.ReplaceAll(text, []byte(removed))
	return userInfo.ReplaceAll(text, []byte("${1}:"+removed+"@"))
}

// Config returns the documents of a configuration without comments, and without the values of
// fields that may be a secret. Paths of files remain.
func Config(text []byte) ([]byte, error) {
	var out bytes.Buffer
	for i, document := range strings.Split("\n"+string(text), "\n---") {
		var v any
		if err := yaml.Unmarshal([]byte(document), &v); err != nil {
			// The message may quote the line.
			return nil, fmt.Errorf("document %d is not YAML, and is left out because its secrets cannot be found", i+1)
		}
		if v == nil {
			continue
		}
		if object, ok := v.(map[string]any); ok && object["kind"] == "Secret" {
			hide(object, "data", "stringData")
		}
		b, err := yaml.Marshal(redacted(v))
		if err != nil {
			return nil, err
		}
		out.WriteString("---\n")
		out.Write(b)
	}
	return out.Bytes(), nil
}

// hide replaces the values in fields of an object.
func hide(object map[string]any, fields ...string) {
	for _, f := range fields {
		if values, ok := object[f].(map[string]any); ok {
			for k := range values {
				values[k] = removed
			}
		}
	}
	if meta, ok := object["metadata"].(map[string]any); ok {
		delete(meta, "annotations") // kubectl apply keeps a copy of the object there
	}
}

func redacted(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, value := range v {
			if secretKey.MatchString(k) {
				v[k] = redactedField(k, value)
			} else {
				v[k] = redacted(value)
			}
		}
	case []any:
		for i := range v {
			v[i] = redacted(v[i])
		}
	}
	return v
}

// redactedField returns the value of a field whose name matches secretKey.
func redactedField(key string, value any) any {
	switch value := value.(type) {
	case map[string]any: // such as passwordSecret: {name: ...}
		return redacted(value)
	case []any:
		for i := range value {
			value[i] = redactedField(key, value[i])
		}
		return value
	case string:
		if value == "" || strings.HasSuffix(key, "File") && strings.HasPrefix(value, "/") {
			return value
		}
		return removed
	case nil, bool:
		return value
	}
	return removed
}

// Names replaces addresses by names. Archives with one key have the same names, and without the key
// nobody can tell the address of a name: there are few enough of IPv4 to try them all.
type Names struct{ key string }

// nameBytes is how much of an HMAC is in a name: two of 10,000 addresses have one name with a
// probability of 1 in 20,000.
const nameBytes = 5

// NewNames returns the names of a key; "": of a random one.
func NewNames(key string) *Names {
	return &Names{cmp.Or(key, rand.Text())}
}

// Key returns the key.
func (n *Names) Key() string { return n.key }

const (
	hex = `[0-9A-Fa-f]`
	// colon is a colon, also percent-encoded (RFC 3986, section 2.1), once or again.
	colon = `(?::|%(?:25)*3[Aa])`
)

var (
	colons = regexp.MustCompile(colon)
	// candidates are texts that may contain an address: of IPv6 or of a link with colons, behind an
	// encoded bracket; of a link with dashes or dots, or in the name of an interface
	// (systemd.net-naming-scheme); of IPv4; and of IPv4 in the name of a node, with dashes.
	candidates = regexp.MustCompile(
		`%?` + hex + `*` + colon + `(?:` + hex + `|\.|` + colon + `)*(?:` + hex + `|` + colon + `)|` +
			`\b` + hex + `{2}(?:-` + hex + `{2}){5,7}\b|\b` + hex + `{4}(?:\.` + hex + `{4}){2,3}\b|` +
			`(?:en|ib|sl|wl|ww)x` + hex + `{12}|` +
			`\d{1,3}(?:\.\d{1,3}){3}|\d{1,3}(?:-\d{1,3}){3}`)
	// interfaceMAC matches the begin of a name with a MAC address.
	interfaceMAC = regexp.MustCompile(`^(..x)(` + hex + `{4})(` + hex + `{4})(` + hex + `{4})$`)
)

// longestAddress is the length of a link address of InfiniBand, of 20 bytes. An IPv6 address that
// ends as an IPv4 address does (RFC 4291, section 2.2) has at most 45 characters.
const longestAddress = 59

// replace replaces addresses by names: IPv4 and IPv6 addresses, also in prefixes, with ports and
// percent-encoded, and addresses of links. Loopback and unspecified addresses stay, because they
// are everybody's.
func (n *Names) replace(text []byte) []byte {
	return candidates.ReplaceAllFunc(text, func(found []byte) []byte {
		return []byte(n.replaceCandidate(string(found)))
	})
}

// replaceCandidate replaces the addresses in a candidate. A text without one stays as it is.
func (n *Names) replaceCandidate(found string) string {
	if m := interfaceMAC.FindStringSubmatch(found); m != nil {
		return m[1] + n.name(m[2]+"."+m[3]+"."+m[4])
	}
	encoded := colons.FindString(found)
	plain := colons.ReplaceAllLiteralString(found, ":")
	escape := ""
	if len(plain) > 3 && plain[0] == '%' { // of a bracket, whose digits are not the address's
		escape, plain = plain[:3], plain[3:]
	}
	out := n.replaceIn(plain)
	if out == plain {
		return found
	}
	return escape + strings.ReplaceAll(out, ":", encoded)
}

// replaceIn replaces the addresses in a candidate. Other words with colons may be around one, so it
// looks for the longest address from each place on.
func (n *Names) replaceIn(s string) string {
	var out strings.Builder
	for s != "" {
		length, name := n.first(s)
		if length == 0 {
			length = 1
			name = s[:1]
		}
		out.WriteString(name)
		s = s[length:]
	}
	return out.String()
}

// first returns the longest address at the start of s and its name; 0 if there is none.
func (n *Names) first(s string) (length int, name string) {
	for length = min(len(s), longestAddress); length > 1; length-- {
		if name = n.name(s[:length]); name != "" {
			return length, name
		}
	}
	return 0, ""
}

// name returns the text that replaces an address; "" if s is none.
func (n *Names) name(s string) string {
	kind, address := "", ""
	if a, err := netip.ParseAddr(s); err == nil {
		a = a.Unmap()
		if a.IsUnspecified() || a.IsLoopback() {
			return s
		}
		kind, address = "ipv6", a.String()
		if a.Is4() {
			kind = "ipv4"
		}
	} else if a, err := netip.ParseAddr(strings.ReplaceAll(s, "-", ".")); err == nil && strings.Count(s, "-") == 3 {
		kind, address = "ipv4", a.String()
	} else if m, err := net.ParseMAC(s); err == nil {
		kind, address = "mac", m.String()
	} else {
		return ""
	}
	h := hmac.New(sha256.New, []byte(n.key))
	h.Write([]byte(address))
	return fmt.Sprintf("%s-%x", kind, h.Sum(nil)[:nameBytes])
}
