package status

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"
)

// ParseClient parses an address or a prefix.
func ParseClient(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return p, fmt.Errorf("%q is neither an address nor a CIDR such as 192.0.2.0/24 or 2001:db8::/64", s)
	}
	return p, nil
}

// DenialText describes an entry, with its origin and its end.
func (v *DenialView) DenialText() string {
	text := v.Client.String() + " is denied by "
	if v.From == DeniedByConfiguration {
		return text + "`deny` of the configuration"
	}
	text += "`sluice deny`"
	if !v.Until.IsZero() {
		text += " until " + v.Until.UTC().Format(time.RFC3339)
	}
	return text
}

// deny answers PUT /denials/CLIENT?for=DURATION.
func (s *Server) deny(w http.ResponseWriter, r *http.Request) {
	client, err := ParseClient(r.PathValue("client"))
	after, durationErr := parseFor(r.URL.Query().Get("for"))
	if err = errors.Join(err, durationErr); err != nil {
		s.fail(w, http.StatusBadRequest, err)
		return
	}
	v, err := s.gateway.Deny(r.Context(), client, after)
	if err != nil {
		s.fail(w, http.StatusInternalServerError, err)
		return
	}
	attributes := append(asker(r), "client", client.String(), "flows", v.Flows)
	if !v.Until.IsZero() {
		attributes = append(attributes, "until", v.Until.UTC().Format(time.RFC3339))
	}
	s.log.Info("client denied by the operator", attributes...)
	s.reply(w, v)
}

// maxFor is the longest time for which a client is denied, except without an end.
const maxFor = 10 * 365 * 24 * time.Hour

// parseFor parses how long a client is denied; 0 is without an end.
func parseFor(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d > maxFor {
		return 0, fmt.Errorf("%q is no time for which a client can be denied, write one such as 90s, 15m or 24h, at "+
			"most 10 years", text)
	}
	return d, nil
}

// allow answers DELETE /denials/CLIENT.
func (s *Server) allow(w http.ResponseWriter, r *http.Request) {
	client, err := ParseClient(r.PathValue("client"))
	if err != nil {
		s.fail(w, http.StatusBadRequest, err)
		return
	}
	if err := s.gateway.Allow(r.Context(), client); err != nil {
		s.fail(w, http.StatusConflict, fmt.Errorf("%s: %w", client, err))
		return
	}
	s.log.Info("client is no longer denied by the operator", append(asker(r), "client", client.String())...)
	s.reply(w, Count{1})
}

// Denials lists the denied clients.
func (c *Client) Denials(ctx context.Context) ([]DenialView, error) {
	return ask[[]DenialView](ctx, c, http.MethodGet, c.root+"/denials", nil)
}

// Deny denies a client for a time, or without an end if that is 0.
func (c *Client) Deny(ctx context.Context, client netip.Prefix, after time.Duration) (DeniedView, error) {
	q := url.Values{}
	if after > 0 {
		q.Set("for", after.String())
	}
	return ask[DeniedView](ctx, c, http.MethodPut, c.root+"/denials/"+pathOf(client), q)
}

// Allow ends a denial that Deny began.
func (c *Client) Allow(ctx context.Context, client netip.Prefix) error {
	_, err := ask[Count](ctx, c, http.MethodDelete, c.root+"/denials/"+pathOf(client), nil)
	return err
}

// pathOf escapes a prefix, except its slash: the server decodes the path before it matches it.
func pathOf(client netip.Prefix) string {
	return strings.ReplaceAll(url.PathEscape(client.String()), "%2F", "/")
}
