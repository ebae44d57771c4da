package probe

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"sluice.dev/sluice/control/objects"
)

// askHTTP makes a request over a connection and checks the status code. It does not follow
// redirects: it asks the endpoint only.
func askHTTP(c net.Conn, scheme string, to netip.AddrPort, check *objects.Check) (string, error) {
	q, err := http.NewRequest(check.Method, scheme+"://"+to.String()+check.Path, nil)
	if err != nil {
		return "", err
	}
	q.Header.Set("User-Agent", "sluice-health-check")
	q.Close = true
	if check.Host != "" {
		q.Host = check.Host
	}
	var request bytes.Buffer
	if err := q.Write(&request); err != nil {
		return "", err
	}
	if _, err := c.Write(request.Bytes()); err != nil {
		return "", err
	}
	r := bufio.NewReaderSize(c, 2048)
	h, err := readHead(r)
	for err == nil && h.status < 200 { // informational (RFC 9110, section 15.2)
		h, err = readHead(r)
	}
	if err != nil {
		return "", err
	}
	if check.Method != http.MethodHead {
		h.discardBody(c, r)
	}
	if h.status < int(check.StatusMin) || h.status > int(check.StatusMax) {
		return "", fmt.Errorf("status %d", h.status)
	}
	return fmt.Sprintf("status %d", h.status), nil
}

// head is the part of an answer's head that a check uses.
type head struct {
	status  int
	length  int64 // of the body; -1 is up to the end of the connection
	chunked bool
}

var errNoHTTP = errors.New("malformed HTTP response")

// readHead reads the head of an answer (RFC 9112, section 4), and keeps none of its fields.
func readHead(r *bufio.Reader) (head, error) {
	h := head{length: -1}
	line, err := readLine(r)
	if err != nil {
		return h, err
	}
	version, rest, _ := strings.Cut(line, " ")
	code, _, _ := strings.Cut(rest, " ")
	_, _, ok := http.ParseHTTPVersion(version)
	if h.status, err = strconv.Atoi(code); !ok || err != nil || len(code) != 3 || h.status < 100 {
		return h, errNoHTTP
	}
	for {
		if line, err = readLine(r); err != nil || line == "" {
			return h, err
		}
		name, value, field := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch {
		case !field && line[0] != ' ' && line[0] != '\t':
			return h, errNoHTTP
		case strings.EqualFold(name, "Content-Length"):
			if h.length, err = strconv.ParseInt(value, 10, 64); err != nil || h.length < 0 {
				return h, errNoHTTP
			}
		case strings.EqualFold(name, "Transfer-Encoding"):
			h.chunked = true
		}
	}
}

// readLine returns a line without its end, and the beginning of one longer than the buffer of r. A
// line whose end cannot be read is an error.
func readLine(r *bufio.Reader) (string, error) {
	b, err := r.ReadSlice('\n')
	line := strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")
	for errors.Is(err, bufio.ErrBufferFull) {
		_, err = r.ReadSlice('\n')
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return line, err
}

// discardBody reads the begin of a body, as some servers log a client that ends before. The check
// is decided already.
func (h *head) discardBody(c net.Conn, r *bufio.Reader) {
	const most, wait = 4096, 100 * time.Millisecond
	if h.status == http.StatusNoContent || h.status == http.StatusNotModified {
		return
	}
	_ = c.SetReadDeadline(time.Now().Add(wait))
	body := io.Reader(r)
	switch {
	case h.chunked:
		body = httputil.NewChunkedReader(r)
	case h.length >= 0:
		body = io.LimitReader(r, h.length)
	}
	_, _ = io.CopyN(io.Discard, body, most)
}
