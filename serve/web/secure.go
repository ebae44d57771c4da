package web

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"sluice.dev/sluice/internal/trusted"
)

// maxTokenFile bounds the file of tokens, which is read into memory after each change.
const maxTokenFile = 64 << 10

// watched has the value read from files. The files are read again when one of them has changed. If
// they cannot be read, the last good value stays in force: a certificate and its key change one
// after the other.
type watched[T any] struct {
	files []string
	read  func() (T, error)
	log   *slog.Logger

	mu     sync.Mutex      // guards the fields below
	stamps []trusted.Stamp // stamps of the files that value was read from
	value  T
	failed failure // the last reading, if it failed
}

// failure is a reading of files that failed.
type failure struct {
	stamps []trusted.Stamp
	at     time.Time
	why    string
}

// retryAfter is the time after which files that could not be read are read again although their
// stamps are the same: the reason can be a directory's mode, or a lack of descriptors.
const retryAfter = time.Second

// watch returns an error if the files cannot be read now.
func watch[T any](log *slog.Logger, read func() (T, error), files ...string) (*watched[T], error) {
	w := &watched[T]{files: files, read: read, log: log, stamps: stampsOf(files)}
	var err error
	w.value, err = read()
	return w, err
}

func (w *watched[T]) get() T {
	w.mu.Lock()
	defer w.mu.Unlock()
	stamps := stampsOf(w.files)
	f := &w.failed
	if slices.Equal(stamps, w.stamps) || slices.Equal(stamps, f.stamps) && time.Since(f.at) < retryAfter {
		return w.value
	}
	value, err := w.read()
	if err != nil {
		if f.why != err.Error() {
			w.log.Warn("changed files cannot be used: their former content stays in force", "files", w.files, "error",
				err)
		}
		*f = failure{stamps, time.Now(), err.Error()}
		return w.value
	}
	w.value, w.stamps, *f = value, stamps, failure{}
	return value
}

// stampsOf returns the files' stamps; the zero stamp for a missing file.
func stampsOf(files []string) (stamps []trusted.Stamp) {
	for _, file := range files {
		s, _ := trusted.StampOf(file)
		stamps = append(stamps, s)
	}
	return stamps
}

// TLS returns a configuration with a certificate and its key, PEM files that may be renewed while
// it is in use. It returns an error if they cannot be used now.
func TLS(certFile, keyFile string, log *slog.Logger) (*tls.Config, error) {
	pair, err := watch(log, func() (tls.Certificate, error) {
		return readPair(certFile, keyFile)
	}, certFile, keyFile)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			c := pair.get()
			return &c, nil
		},
	}, nil
}

// Ends returns when the certificate of TLS ends, or an error if the files cannot be used.
func Ends(certFile, keyFile string) (e trusted.Ends, err error) {
	pair, err := readPair(certFile, keyFile)
	if err != nil {
		return e, err
	}
	return trusted.EndsOf(&pair)
}

func readPair(certFile, keyFile string) (pair tls.Certificate, err error) {
	cert, err := trusted.Read(certFile)
	if err != nil {
		return pair, err
	}
	key, err := trusted.Read(keyFile)
	if err != nil {
		return pair, err
	}
	if pair, err = tls.X509KeyPair(cert, key); err != nil {
		err = fmt.Errorf("%s and %s: %w", certFile, keyFile, err)
	}
	return pair, err
}

// Tokens admits requests with one of the bearer tokens (RFC 6750 section 2.1) in a file, one on
// each line, so that a new token can be added before an old one is removed. The file may change
// while it is in use.
type Tokens struct{ sums *watched[[][sha256.Size]byte] }

// ReadTokens returns an error if the file cannot be read or has no token.
func ReadTokens(file string, log *slog.Logger) (*Tokens, error) {
	sums, err := watch(log, func() ([][sha256.Size]byte, error) { return readSums(file) }, file)
	return &Tokens{sums}, err
}

func readSums(file string) (sums [][sha256.Size]byte, err error) {
	text, err := trusted.Read(file)
	switch {
	case err != nil:
		return nil, err
	case len(text) > maxTokenFile:
		return nil, fmt.Errorf("%s: more than %d bytes", file, maxTokenFile)
	}
	for line := range bytes.Lines(text) {
		if token := bytes.TrimSpace(line); len(token) > 0 {
			sums = append(sums, sha256.Sum256(token))
		}
	}
	if len(sums) == 0 {
		return nil, fmt.Errorf("%s: %w", file, errNoToken)
	}
	return sums, nil
}

var errNoToken = errors.New("it has no token: write one token per line")

// Guard answers 401 to requests without one of the tokens. A nil Tokens admits all requests.
func (t *Tokens) Guard(h http.Handler) http.Handler {
	if t == nil {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !t.Admits(r) {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "a bearer token is needed", http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// Admits reports whether a request has one of the tokens. The time that it takes does not depend on
// how much of a token is right.
func (t *Tokens) Admits(r *http.Request) bool {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	sum, found := sha256.Sum256([]byte(strings.TrimSpace(token))), 0
	for _, s := range t.sums.get() {
		found |= subtle.ConstantTimeCompare(s[:], sum[:])
	}
	return found == 1 && strings.EqualFold(scheme, "Bearer")
}
