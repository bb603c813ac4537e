package acme;

import io.grpc.CallCredentials;
import io.grpc.ChannelCredentials;
import io.grpc.CompositeChannelCredentials;
import io.grpc.InsecureChannelCredentials;
import io.grpc.InsecureServerCredentials;
import io.grpc.Metadata;
import io.grpc.ServerCredentials;
import io.grpc.Status;
import io.grpc.TlsChannelCredentials;
import io.grpc.TlsServerCredentials;
import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.InvalidPathException;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.Executor;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * How a program reaches evald, and how evald reaches a plugin that listens: TLS and a token, as the environment has
 * them.
 *
 * <pre>
 * EVALD_TLS=1                      encrypt, and trust Java's roots; each file below turns it on too
 * EVALD_CA_FILE                    the CA of the server's certificate
 * EVALD_CERT_FILE, EVALD_KEY_FILE  this program's certificate, for servers that ask for one
 * EVALD_TOKEN_FILE, EVALD_TOKEN    the API key; the file is read again for every call
 * </pre>
 *
 * Of a plugin that listens, named as those of a server:
 *
 * <pre>
 * EVALD_TLS_CERT_FILE, EVALD_TLS_KEY_FILE  the certificate that it shows
 * EVALD_TLS_CLIENT_CA_FILE                 the CA of the certificates that callers must show
 * </pre>
 *
 * All files are PEM, keys are PKCS #8. Certificates are read once, when the program starts.
 */
public final class Access {
  private static final Metadata.Key<String> AUTHORIZATION =
      Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);
  private static final Pattern SENDABLE = Pattern.compile("[!-~]+");
  private static final Pattern LOOPBACK =
      Pattern.compile("(localhost|127(\\.(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)){3}|\\[::1\\]):\\d+");
  private static final Pattern SCHEME = Pattern.compile("^(dns:///|dns:|ipv4:|ipv6:)");

  private Access() {}

  /** The credentials for a server. Throws IllegalArgumentException when the environment contradicts itself. */
  public static ChannelCredentials toServer(String server) {
    ChannelCredentials channel = channelCredentials();
    String text = setting("EVALD_TOKEN");
    String file = setting("EVALD_TOKEN_FILE");
    if (text.isEmpty() && file.isEmpty()) {
      return channel;
    }
    if (!text.isEmpty() && !file.isEmpty()) {
      throw new IllegalArgumentException(
          "EVALD_TOKEN: both EVALD_TOKEN and EVALD_TOKEN_FILE are set, wanted one of them");
    }
    if (channel instanceof InsecureChannelCredentials && !isThisMachine(server)) {
      throw new IllegalArgumentException(
          "EVALD_TOKEN: a token for %s without TLS, wanted EVALD_CA_FILE or EVALD_TLS=1".formatted(server));
    }
    return CompositeChannelCredentials.create(channel, new Token(text, file));
  }

  /** TLS of a plugin that listens: none without EVALD_TLS_CERT_FILE. */
  public static ServerCredentials ofListener() throws IOException {
    String cert = setting("EVALD_TLS_CERT_FILE");
    String ca = setting("EVALD_TLS_CLIENT_CA_FILE");
    if (cert.isEmpty() != setting("EVALD_TLS_KEY_FILE").isEmpty() || (cert.isEmpty() && !ca.isEmpty())) {
      throw new IllegalArgumentException(
          "EVALD_TLS_CERT_FILE: wanted EVALD_TLS_KEY_FILE as well; EVALD_TLS_CLIENT_CA_FILE needs both");
    }
    if (cert.isEmpty()) {
      return InsecureServerCredentials.create();
    }
    TlsServerCredentials.Builder tls =
        TlsServerCredentials.newBuilder().keyManager(new File(cert), new File(setting("EVALD_TLS_KEY_FILE")));
    if (!ca.isEmpty()) {
      tls.trustManager(new File(ca)).clientAuth(TlsServerCredentials.ClientAuth.REQUIRE);
    }
    return tls.build();
  }

  private static ChannelCredentials channelCredentials() {
    String wanted = setting("EVALD_TLS").strip().toLowerCase(Locale.ROOT);
    String ca = setting("EVALD_CA_FILE");
    String cert = setting("EVALD_CERT_FILE");
    String key = setting("EVALD_KEY_FILE");
    boolean off = List.of("0", "false", "no", "off").contains(wanted);
    if (!off && !wanted.isEmpty() && !List.of("1", "true", "yes", "on").contains(wanted)) {
      throw new IllegalArgumentException("EVALD_TLS: got \"%.20s\", wanted 1 or 0".formatted(wanted));
    }
    if (off || (wanted.isEmpty() && ca.isEmpty() && cert.isEmpty() && key.isEmpty())) {
      return InsecureChannelCredentials.create();
    }
    if (cert.isEmpty() != key.isEmpty()) {
      throw new IllegalArgumentException(
          "EVALD_CERT_FILE: only one of EVALD_CERT_FILE and EVALD_KEY_FILE is set, wanted both or neither");
    }
    TlsChannelCredentials.Builder tls = TlsChannelCredentials.newBuilder();
    try {
      if (!ca.isEmpty()) {
        tls.trustManager(new File(ca));
      }
      if (!cert.isEmpty()) {
        tls.keyManager(new File(cert), new File(key));
      }
    } catch (IOException problem) {
      throw new IllegalArgumentException("EVALD_CA_FILE, EVALD_CERT_FILE, EVALD_KEY_FILE: " + problem.getMessage());
    }
    return tls.build();
  }

  /** A variable; "" where it is not set. */
  private static String setting(String name) {
    return System.getenv().getOrDefault(name, "");
  }

  /** Whether only this machine can read what is sent to a target of gRPC's. Names but localhost may be anywhere. */
  private static boolean isThisMachine(String target) {
    if (target.startsWith("unix:")) {
      return true;
    }
    Matcher scheme = SCHEME.matcher(target);
    String[] addresses = scheme.replaceFirst("").split(",");
    return Arrays.stream(addresses).allMatch(address -> LOOPBACK.matcher(address).matches());
  }

  /** An API key, or the file that holds it. */
  private static final class Token extends CallCredentials {
    private final String text;
    private final String file;

    Token(String text, String file) {
      this.text = text;
      this.file = file;
    }

    @Override
    public void applyRequestMetadata(RequestInfo call, Executor executor, MetadataApplier applier) {
      executor.execute(() -> {
        try {
          String token = file.isEmpty() ? text : read(file);
          if (!SENDABLE.matcher(token).matches()) { // never shown, not even in part
            throw new IOException("wanted printable ASCII without spaces");
          }
          Metadata headers = new Metadata();
          headers.put(AUTHORIZATION, "Bearer " + token);
          applier.apply(headers);
        } catch (IOException problem) {
          applier.fail(Status.UNAUTHENTICATED.withDescription("EVALD_TOKEN: " + problem.getMessage()));
        }
      });
    }

    private static String read(String file) throws IOException {
      try {
        return Files.readString(Path.of(file)).strip();
      } catch (IOException | InvalidPathException problem) {
        // Without the path, which is a key where the two variables were mixed up.
        throw new IOException("EVALD_TOKEN_FILE: cannot be read: " + problem.getClass().getSimpleName());
      }
    }
  }
}
