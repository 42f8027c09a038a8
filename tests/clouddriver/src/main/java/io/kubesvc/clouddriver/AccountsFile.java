package io.kubesvc.clouddriver;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.fasterxml.jackson.databind.node.TextNode;
import com.fasterxml.jackson.dataformat.yaml.YAMLFactory;
import com.netflix.spinnaker.credentials.definition.CredentialsDefinitionSource;
import com.netflix.spinnaker.kork.secrets.EncryptedSecret;
import com.netflix.spinnaker.kork.secrets.SecretManager;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** {@code kubernetes.accounts[]} of a YAML file, which is read at each poll. Secrets are resolved as those of properties. */
class AccountsFile implements CredentialsDefinitionSource<KubernetesDefinition> {
  private final Path path;
  private final ObjectMapper mapper;
  private final SecretManager secrets;

  /** A source without accounts if the path is empty. */
  AccountsFile(String path, ObjectMapper mapper, SecretManager secrets) {
    this.path = path.isEmpty() ? null : Path.of(path);
    this.mapper = mapper;
    this.secrets = secrets;
  }

  @Override
  public List<KubernetesDefinition> getCredentialsDefinitions() {
    var definitions = new ArrayList<KubernetesDefinition>();
    if (path == null) {
      return definitions;
    }
    try {
      JsonNode accounts = new ObjectMapper(new YAMLFactory()).readTree(path.toFile()).at("/kubernetes/accounts");
      for (JsonNode account : accounts) {
        var resolved = ((ObjectNode) account).deepCopy().put("type", "kubernetes");
        account.fields().forEachRemaining(field -> resolved.set(field.getKey(), resolve(field.getValue())));
        definitions.add(mapper.treeToValue(resolved, KubernetesDefinition.class));
      }
    } catch (IOException problem) {
      throw new UncheckedIOException(path.toString(), problem);
    }
    return definitions;
  }

  private JsonNode resolve(JsonNode value) {
    if (!value.isTextual() || !EncryptedSecret.isEncryptedSecret(value.textValue())) {
      return value;
    }
    var text = value.textValue();
    return new TextNode(
        EncryptedSecret.isEncryptedFile(text) ? secrets.decryptAsFile(text).toString() : secrets.decrypt(text));
  }
}
