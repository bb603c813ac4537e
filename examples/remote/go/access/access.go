// Package access says how a program reaches evald, and how evald reaches a
// plugin that listens: TLS and a token, as the environment has them.
//
//	EVALD_TLS=1                      encrypt, and trust the system's roots; each file below turns it on too
//	EVALD_CA_FILE                    the CA of the server's certificate
//	EVALD_CERT_FILE, EVALD_KEY_FILE  this program's certificate, for servers that ask for one
//	EVALD_TOKEN_FILE, EVALD_TOKEN    the API key; the file is read again for every call
//
// Of a plugin that listens, named as those of a server:
//
//	EVALD_TLS_CERT_FILE, EVALD_TLS_KEY_FILE  the certificate that it shows
//	EVALD_TLS_CLIENT_CA_FILE                 the CA of the certificates that callers must show
//
// All files are PEM. Certificates are read again for every connection.
package access

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// DialOptions gives the credentials for a server.
func DialOptions(server string) ([]grpc.DialOption, error) {
	encryption, err := clientTLS()
	if err != nil {
		return nil, err
	}
	transport := insecure.NewCredentials()
	if encryption != nil {
		transport = credentials.NewTLS(encryption)
	}
	options := []grpc.DialOption{grpc.WithTransportCredentials(transport)}
	text, file := os.Getenv("EVALD_TOKEN"), os.Getenv("EVALD_TOKEN_FILE")
	switch {
	case text == "" && file == "":
		return options, nil
	case text != "" && file != "":
		return nil, errors.New("EVALD_TOKEN: both EVALD_TOKEN and EVALD_TOKEN_FILE are set, wanted one of them")
	case encryption == nil && !isThisMachine(server):
		return nil, fmt.Errorf("EVALD_TOKEN: a token for %s without TLS, wanted EVALD_CA_FILE or EVALD_TLS=1", server)
	}
	return append(options, grpc.WithPerRPCCredentials(token{text, file})), nil
}

// ServerOptions gives the TLS of a plugin that listens: none without EVALD_TLS_CERT_FILE.
func ServerOptions() ([]grpc.ServerOption, error) {
	cert, key, ca := os.Getenv("EVALD_TLS_CERT_FILE"), os.Getenv("EVALD_TLS_KEY_FILE"), os.Getenv("EVALD_TLS_CLIENT_CA_FILE")
	if (cert == "") != (key == "") || (cert == "" && ca != "") {
		return nil, errors.New("EVALD_TLS_CERT_FILE: wanted EVALD_TLS_KEY_FILE as well; EVALD_TLS_CLIENT_CA_FILE needs both")
	}
	if cert == "" {
		return nil, nil
	}
	if _, err := pair(cert, key); err != nil {
		return nil, err
	}
	config := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair(cert, key) },
	}
	if ca != "" {
		roots, err := readRoots("EVALD_TLS_CLIENT_CA_FILE", ca)
		if err != nil {
			return nil, err
		}
		config.ClientCAs, config.ClientAuth = roots, tls.RequireAndVerifyClientCert
	}
	return []grpc.ServerOption{grpc.Creds(credentials.NewTLS(config))}, nil
}

// clientTLS is the encryption of connections to evald; nil for plaintext.
func clientTLS() (*tls.Config, error) {
	ca, cert, key := os.Getenv("EVALD_CA_FILE"), os.Getenv("EVALD_CERT_FILE"), os.Getenv("EVALD_KEY_FILE")
	switch wanted := strings.ToLower(strings.TrimSpace(os.Getenv("EVALD_TLS"))); wanted {
	case "0", "false", "no", "off":
		return nil, nil
	case "":
		if ca == "" && cert == "" && key == "" {
			return nil, nil
		}
	case "1", "true", "yes", "on":
	default:
		return nil, fmt.Errorf("EVALD_TLS: got %.20q, wanted 1 or 0", wanted)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		roots, err := readRoots("EVALD_CA_FILE", ca)
		if err != nil {
			return nil, err
		}
		config.RootCAs = roots
	}
	if (cert == "") != (key == "") {
		return nil, errors.New("EVALD_CERT_FILE: only one of EVALD_CERT_FILE and EVALD_KEY_FILE is set, wanted both or neither")
	}
	if cert != "" {
		if _, err := pair(cert, key); err != nil {
			return nil, err
		}
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair(cert, key) }
	}
	return config, nil
}

func pair(cert, key string) (*tls.Certificate, error) {
	found, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("%s, %s: %w", cert, key, err)
	}
	return &found, nil
}

func readRoots(name, file string) (*x509.CertPool, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("%s: %s contains no certificate, wanted PEM", name, file)
	}
	return roots, nil
}

// token is an API key, or the file that holds it.
type token struct{ text, file string }

var sendable = regexp.MustCompile(`^[!-~]+$`)

// GetRequestMetadata is called for every call.
func (t token) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	text := t.text
	if t.file != "" {
		data, err := os.ReadFile(t.file)
		var problem *fs.PathError
		if errors.As(err, &problem) {
			err = problem.Err // without the path, which is a key where the two variables were mixed up
		}
		if err != nil {
			return nil, status.Errorf(codes.Unauthenticated, "EVALD_TOKEN_FILE: cannot be read: %v", err)
		}
		text = strings.TrimSpace(string(data))
	}
	if !sendable.MatchString(text) { // never shown, not even in part
		return nil, status.Error(codes.Unauthenticated, "EVALD_TOKEN: wanted printable ASCII without spaces")
	}
	return map[string]string{"authorization": "Bearer " + text}, nil
}

// RequireTransportSecurity is false: DialOptions has looked where the token goes.
func (t token) RequireTransportSecurity() bool { return false }

// isThisMachine tells whether only this machine can read what is sent to a
// target of gRPC's. Names other than localhost may be anywhere.
func isThisMachine(target string) bool {
	if strings.HasPrefix(target, "unix:") || strings.HasPrefix(target, "unix-abstract:") {
		return true
	}
	for _, prefix := range []string{"dns:///", "dns:", "ipv4:", "ipv6:"} {
		if rest, found := strings.CutPrefix(target, prefix); found {
			target = rest
			break
		}
	}
	return !slices.ContainsFunc(strings.Split(target, ","), func(address string) bool {
		host, _, err := net.SplitHostPort(address)
		ip := net.ParseIP(host)
		return err != nil || (host != "localhost" && (ip == nil || !ip.IsLoopback()))
	})
}
