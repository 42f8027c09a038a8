package io.kubesvc.clouddriver;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.netflix.spinnaker.clouddriver.security.AccountCredentials;
import com.netflix.spinnaker.clouddriver.security.AccountCredentialsProvider;
import com.netflix.spinnaker.clouddriver.security.AccountDefinitionRepository.Revision;
import com.netflix.spinnaker.clouddriver.security.AccountDefinitionService;
import com.netflix.spinnaker.credentials.definition.CredentialsDefinition;
import com.netflix.spinnaker.kork.exceptions.ConfigurationException;
import com.netflix.spinnaker.kork.web.exceptions.InvalidRequestException;
import com.netflix.spinnaker.kork.web.exceptions.NotFoundException;
import java.util.Collection;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.web.bind.annotation.DeleteMapping;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.PathVariable;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.PutMapping;
import org.springframework.web.bind.annotation.RequestBody;
import org.springframework.web.bind.annotation.RequestMapping;
import org.springframework.web.bind.annotation.RequestParam;
import org.springframework.web.bind.annotation.RestController;

/** The calls of {@code /credentials}. Clouddriver's own service answers those of stored accounts. */
@RestController
@RequestMapping("/credentials")
class CredentialsRoutes {
  private static final Set<String> SHORT =
      Set.of(
          "name", "environment", "accountType", "cloudProvider", "requiredGroupMembership", "permissions", "accountId");
  /** Clouddriver's defaults of the two settings that mark accounts by environment and type. */
  private static final Set<String> MARKED = Set.of("default");

  private final AccountCredentialsProvider loaded;
  private final ObjectProvider<AccountDefinitionService> stored;
  private final ObjectMapper mapper;

  CredentialsRoutes(
      AccountCredentialsProvider loaded, ObjectProvider<AccountDefinitionService> stored, ObjectMapper mapper) {
    this.loaded = loaded;
    this.stored = stored;
    this.mapper = mapper;
  }

  @GetMapping
  List<ObjectNode> list(@RequestParam(defaultValue = "false") boolean expand) {
    return loaded.getAll().stream().map(account -> shown(account, expand)).collect(Collectors.toList());
  }

  @GetMapping("/{name}")
  ObjectNode one(@PathVariable String name) {
    var account = loaded.getCredentials(name);
    if (account == null) {
      throw new NotFoundException("Account does not exist (name: " + name + ")");
    }
    return shown(account, true);
  }

  @GetMapping("/type/{type}")
  List<? extends CredentialsDefinition> ofType(
      @PathVariable String type,
      @RequestParam(defaultValue = "100") int limit,
      @RequestParam(required = false) String startingAccountName) {
    return stored().listAccountDefinitionsByType(type, limit, startingAccountName);
  }

  @PostMapping
  CredentialsDefinition create(@RequestBody CredentialsDefinition definition) {
    return stored().createAccount(definition);
  }

  @PutMapping
  CredentialsDefinition save(@RequestBody CredentialsDefinition definition) {
    return stored().saveAccount(definition);
  }

  @PutMapping("/{name}")
  CredentialsDefinition update(@PathVariable String name, @RequestBody CredentialsDefinition definition) {
    if (!name.equals(definition.getName())) {
      throw new InvalidRequestException(
          String.format(
              "Mismatched account names. URI value: %s. Request body value: %s.", name, definition.getName()));
    }
    return stored().updateAccount(definition);
  }

  @DeleteMapping("/{name}")
  void delete(@PathVariable String name) {
    stored().deleteAccount(name);
  }

  @GetMapping("/{name}/history")
  Collection<Revision> history(@PathVariable String name) {
    return stored().getAccountHistory(name);
  }

  private AccountDefinitionService stored() {
    var service = stored.getIfAvailable();
    if (service == null) {
      throw new ConfigurationException(
          "Cannot use AccountDefinitionService endpoints without enabling AccountDefinitionService bean");
    }
    return service;
  }

  private ObjectNode shown(AccountCredentials<?> account, boolean expand) {
    ObjectNode shown = mapper.valueToTree(account);
    if (!expand) {
      shown.retain(SHORT);
    }
    return shown
        .put("type", account.getCloudProvider())
        .put("challengeDestructiveActions", MARKED.contains(account.getEnvironment()))
        .put("primaryAccount", MARKED.contains(account.getAccountType()));
  }
}
