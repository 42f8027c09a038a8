package io.kubesvc.clouddriver;

import java.io.IOException;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.stereotype.Component;

/** kubectl, with the command lines that Clouddriver gives it, one process for each. */
@Component
class Kubectl {
  private final String executable;

  Kubectl(@Value("${kubernetes.kubectl.executable:kubectl}") String executable) {
    this.executable = executable;
  }

  /** kubectl failed; the message is what it printed as the error. */
  static class Failed extends Exception {
    Failed(String errors) {
      super(errors);
    }
  }

  /** Runs {@code arguments} for an account, in a namespace if one is given, and returns what kubectl printed. */
  String run(KubernetesAccount account, String namespace, String input, String... arguments)
      throws IOException, InterruptedException, Failed {
    var definition = account.getCredentials();
    List<String> line = new ArrayList<>();
    line.add(definition.kubectlExecutable == null ? executable : definition.kubectlExecutable);
    if (definition.kubectlRequestTimeoutSeconds != null) {
      line.add("--request-timeout=" + definition.kubectlRequestTimeoutSeconds);
    }
    if (!definition.serviceAccount) {
      line.add("--kubeconfig=" + account.kubeconfigFile());
    }
    if (definition.context != null && !definition.context.isEmpty()) {
      line.add("--context=" + definition.context);
    }
    if (namespace != null && !namespace.isEmpty()) {
      line.add("--namespace=" + namespace);
    }
    line.addAll(Arrays.asList(arguments));
    var errors = Files.createTempFile("kubectl", ".err");
    try {
      var process = new ProcessBuilder(line).redirectError(errors.toFile()).start();
      try (var stdin = process.getOutputStream()) {
        stdin.write(input.getBytes());
      } catch (IOException closed) {
        // kubectl ended without reading it, and says why.
      }
      var output = new String(process.getInputStream().readAllBytes());
      if (process.waitFor() != 0) {
        throw new Failed(Files.readString(errors));
      }
      return output;
    } finally {
      Files.deleteIfExists(errors);
    }
  }
}
