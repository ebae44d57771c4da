package web

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io/fs"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/internal/trusted"
)

// replace writes a file as volumes of Secrets do: another one in its place.
func replace(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

// certificate makes one that is its own authority.
func certificate(t *testing.T, serial int64) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "gateway"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	der2, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der2}))
}

// TestTLSRenewed: connections get the certificate that is in the files; while those do not belong
// together, the one before.
func TestTLSRenewed(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	if _, err := TLS(certFile, keyFile, slog.New(slog.DiscardHandler)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without files: %v", err)
	}
	cert, key := certificate(t, 1)
	replace(t, certFile, cert)
	replace(t, keyFile, key)
	var log bytes.Buffer
	config, err := TLS(certFile, keyFile, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	server := New(Config{Address: "127.0.0.1:0", TLS: config, Handler: http.NotFoundHandler(),
		Log: slog.New(slog.DiscardHandler)})
	done := make(chan struct{})
	go func() { server.Run(t.Context()); close(done) }()
	t.Cleanup(func() { <-done })
	for server.Addr() == nil {
		time.Sleep(time.Millisecond)
	}
	serial := func() int64 {
		t.Helper()
		c, err := tls.Dial("tcp", server.Addr().String(), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	if got := serial(); got != 1 {
		t.Errorf("certificate %d, want 1", got)
	}
	cert, key = certificate(t, 2)
	replace(t, certFile, cert)
	for range 2 {
		if got := serial(); got != 1 {
			t.Errorf("certificate %d with the key of another, want the one before", got)
		}
	}
	if n := strings.Count(log.String(), "stays in force"); n != 1 {
		t.Errorf("%d warnings, want 1: %s", n, &log)
	}
	replace(t, keyFile, key)
	if got := serial(); got != 2 {
		t.Errorf("certificate %d, want 2", got)
	}
}

func TestTokens(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	log := slog.New(slog.DiscardHandler)
	for _, text := range []string{"", "\n \n", strings.Repeat("x", maxTokenFile+1)} {
		replace(t, file, text)
		if _, err := ReadTokens(file, log); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("a file of %d bytes: %v", len(text), err)
		}
	}
	replace(t, file, "first\n\nsecond\n")
	tokens, err := ReadTokens(file, log)
	if err != nil {
		t.Fatal(err)
	}
	h := tokens.Guard(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	ask := func(authorization string) int {
		r := httptest.NewRequest("GET", "/metrics", nil)
		if authorization != "" {
			r.Header.Set("Authorization", authorization)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code == http.StatusUnauthorized && w.Header().Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("401 does not say how to ask: %v", w.Header())
		}
		return w.Code
	}
	want := func(codes map[string]int) {
		t.Helper()
		for authorization, code := range codes {
			if got := ask(authorization); got != code {
				t.Errorf("Authorization %q: %d, want %d", authorization, got, code)
			}
		}
	}
	want(map[string]int{
		"": 401, "Bearer": 401, "Bearer ": 401, "Bearer firs": 401, "Bearer first second": 401, "Basic first": 401,
		"first": 401, "Bearer first": 200, "bearer second": 200,
	})
	replace(t, file, "third\n")
	want(map[string]int{"Bearer first": 401, "Bearer third": 200})
	replace(t, file, "\n")
	want(map[string]int{"Bearer third": 200, "Bearer": 401})
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	want(map[string]int{"Bearer third": 200, "Bearer ": 401})
}

// TestSecretsAfterARefusal: changed tokens that were refused for a reason outside the file, such as
// the mode of its directory, are in force once that is mended, and the refusal is logged once.
func TestSecretsAfterARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		file := filepath.Join(dir, "tokens")
		replace(t, file, "first")
		var log bytes.Buffer
		tokens, err := ReadTokens(file, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		admits := func(token string) bool {
			r := httptest.NewRequest("GET", "/metrics", nil)
			r.Header.Set("Authorization", "Bearer "+token)
			return tokens.Admits(r)
		}
		mode := func(m os.FileMode) {
			if err := os.Chmod(dir, m); err != nil {
				t.Fatal(err)
			}
		}
		mode(0o777)
		replace(t, file, "second")
		for range 10 {
			if !admits("first") || admits("second") {
				t.Error("tokens in a directory that all may write are in force")
			}
			time.Sleep(retryAfter / 2)
		}
		mode(0o700)
		time.Sleep(retryAfter)
		if admits("first") || !admits("second") {
			t.Error("the tokens from before are in force")
		}
		if n := strings.Count(log.String(), "stays in force"); n != 1 {
			t.Errorf("%d warnings, want 1: %s", n, &log)
		}
	})
}

// TestSecretsAreTrusted: a certificate, its key and tokens are refused where others could change
// them. Whoever may write the tokens reads the metrics.
func TestSecretsAreTrusted(t *testing.T) {
	dir := t.TempDir()
	cert, key := certificate(t, 1)
	for name, text := range map[string]string{"tls.crt": cert, "tls.key": key, "tokens": "first\n"} {
		replace(t, filepath.Join(dir, name), text)
	}
	log := slog.New(slog.DiscardHandler)
	read := func() error {
		_, errTLS := TLS(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), log)
		_, errTokens := ReadTokens(filepath.Join(dir, "tokens"), log)
		return errors.Join(errTLS, errTokens)
	}
	if err := read(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"tls.crt", "tls.key", "tokens"} {
		path := filepath.Join(dir, name)
		if err := os.Chmod(path, 0o606); err != nil {
			t.Fatal(err)
		}
		var refused *trusted.Refusal
		if err := read(); !errors.As(err, &refused) || refused.Path != path {
			t.Errorf("%s that all may write: %v", name, err)
		}
		if err := os.Chmod(path, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
